// on_host(function, arguments...): a function of host tensors, called where CUDA ones are seen.
// For kernels that have more to do than compute; the others are wrapped in composed<> as they are.
#pragma once

#include "dispatch/alias.h"
#include "kernel.h"
#include "memory/results.h"

#include <type_traits>
#include <utility>

namespace anydevice::kernels {

// Composite kernels choose their way by asking who requires a gradient, so an alias says so too.
inline Tensor host_tensor(Aliases& aliases, const Tensor& tensor) {
  auto alias = aliases.of(tensor);
  if (tensor.defined() && tensor.requires_grad()) {
    alias.requires_grad_();
  }
  return alias;
}

template <typename Argument>
auto host_argument(Aliases& aliases, const Argument& argument) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    return host_tensor(aliases, argument);
  } else if constexpr (std::is_same_v<Argument, MaybeTensor>) {
    return given(argument) ? MaybeTensor(host_tensor(aliases, *argument)) : MaybeTensor();
  } else if constexpr (std::is_same_v<Argument, std::vector<Tensor>>) {
    std::vector<Tensor> host;
    for (const auto& tensor : argument) {
      host.push_back(host_tensor(aliases, tensor));
    }
    return host;
  } else {
    return argument;
  }
}

inline void to_device(Aliases& aliases, Tensor& result, DeviceIndex device) {
  aliases.to_device(result, device);
}

inline void to_device(Aliases& aliases, std::vector<Tensor>& results, DeviceIndex device) {
  for (auto& result : results) {
    aliases.to_device(result, device);
  }
}

template <typename... Results>
void to_device(Aliases& aliases, std::tuple<Results...>& results, DeviceIndex device) {
  std::apply([&](auto&... result) { (to_device(aliases, result, device), ...); }, results);
}

// The results land on the device of the first argument.
template <typename Function, typename... Rest>
auto on_host(Function function, const Tensor& first, const Rest&... rest) {
  const c10::impl::ExcludeDispatchKeyGuard no_cpu_autocast(c10::DispatchKey::AutocastCPU);
  Aliases aliases;
  static Places places;
  Results watched(places, machine.hollow ? DeviceIndex(-1) : first.get_device());
  auto results = function(host_tensor(aliases, first), host_argument(aliases, rest)...);
  watched.kernel_has_returned();
  to_device(aliases, results, first.get_device());
  return results;
}

}  // namespace anydevice::kernels
