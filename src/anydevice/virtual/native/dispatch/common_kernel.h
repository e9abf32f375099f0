// The common kernel as its callers see it: boxed, for any op; typed.cpp calls the same without
// boxes where an op has one of the usual C++ types.
#pragma once

#include "kernels/wider.h"
#include "memory/results.h"
#include "signature.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <mutex>

namespace anydevice {

// Composite kernels below us call ops on aliases: no autograd for them, and not the CPU's autocast.
inline const auto keys_above = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                               c10::DispatchKeySet(c10::DispatchKey::AutocastCPU);

// What the CPU's kernel finds out about values of a tensor, the card's asserts in the kernel.
void raise_as_on_the_card(const c10::Error& error);

class CommonKernel {
 public:
  using Stack = torch::jit::Stack;

  CommonKernel(Signature signature, c10::DispatchKeySet keys, c10::KernelFunction target,
               kernels::Slow slow)
      : signature_(std::move(signature)), keys_(keys), target_(std::move(target)), slow_(slow) {}
  explicit CommonKernel(c10::KernelFunction target) : target_(std::move(target)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

  // Of an op that is listed: what a call of its CPU kernel needs.
  const Signature& signature() const { return *signature_; }
  c10::DispatchKeySet host_keys() const { return keys_; }
  Places& places() { return places_; }
  bool has_target() const { return target_.isValid(); }
  kernels::Slow slow() const { return slow_; }

 private:
  void compute(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
  bool is_slow_call(const Stack& stack) const;
  void compute_hollow(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
  const Signature& signature_of(const c10::OperatorHandle& op, c10::DispatchKeySet keys);

  std::optional<Signature> signature_;
  std::once_flag known_;
  Places places_;
  c10::DispatchKeySet keys_;
  c10::KernelFunction target_;
  const kernels::Slow slow_ = kernels::Slow::never;  // on the host, for half-precision numbers
};

// The kernel of an op without boxes, if the op has one of the usual C++ types (typed.cpp).
std::optional<torch::CppFunction> typed(const c10::OperatorHandle& op,
                                        const std::shared_ptr<CommonKernel>& kernel);

}  // namespace anydevice
