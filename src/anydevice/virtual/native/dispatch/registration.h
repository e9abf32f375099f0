// How kernels of ours get to PyTorch's dispatcher.
//
// Note [An op that a torch has otherwise]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Each version of PyTorch changes the schemas of a few ops: an argument more, another type. A
// kernel that is written for another schema would read the wrong arguments, and PyTorch's own check
// stops at the first one. So each kernel is compared with the op's schema before it is registered,
// and if they do not match, it alone is left out:
//
// - A C++ function matches if the schema that PyTorch infers from its type has the same arguments
//   and results. A boxed kernel takes any arguments; it matches if the op has those that it reads
//   by name, as many results as it returns.
// - If the op can be computed without ours, since the CPU or a composite of PyTorch's has it, the
//   common kernel stays in place: it reads the schema and knows no other. Its numbers are the
//   CPU's, where ours are a card's.
// - Otherwise a call of the op is refused with a sentence.
//
// Either way the op is listed in left_out(), which `anydevice devices --issue` prints.
#pragma once

#include <ATen/core/op_registration/infer_schema.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace anydevice {

// A kernel for one op, and which ops it can be a kernel for.
class Kernel {
 public:
  // A C++ function, for ops with its arguments and results.
  template <typename Result, typename... Arguments>
  Kernel(Result (*called)(Arguments...))
      : Kernel(torch::CppFunction(called), std::type_identity<Result(Arguments...)>()) {
    seeing_devices = c10::KernelFunction::makeFromUnboxedRuntimeFunction(called);
  }

  template <typename Function, Function* called>
  Kernel(c10::CompileTimeFunctionPointer<Function, called> known)
      : Kernel(torch::CppFunction(known), std::type_identity<Function>()) {
    seeing_devices = c10::KernelFunction::makeFromUnboxedFunction(known);
  }

  // A boxed kernel that calls such a function.
  template <typename Function>
  Kernel(torch::CppFunction boxed, std::type_identity<Function>)
      : function(std::move(boxed)),
        inferred_(c10::detail::inferFunctionSchemaFromFunctor<Function*>()),
        takes_symint_(c10::fn_has_symint<Function>::value) {}

  // A boxed kernel for ops with these arguments among theirs and so many results (-1: any).
  Kernel(torch::CppFunction boxed, std::vector<const char*> arguments, int results)
      : function(std::move(boxed)), reads_(std::move(arguments)), results_(results) {}

  template <auto* called>
  static Kernel boxed(std::vector<const char*> arguments, int results) {
    Kernel kernel(torch::CppFunction::makeFromBoxedFunction<called>(), std::move(arguments),
                  results);
    kernel.seeing_devices = c10::KernelFunction::makeFromBoxedFunction<called>();
    return kernel;
  }

  // Why this cannot be a kernel for an op with this schema; nothing if it can.
  std::optional<std::string> mismatch(const c10::FunctionSchema& schema) const;

  torch::CppFunction function;
  c10::KernelFunction seeing_devices;  // the same, if it is given CUDA tensors; else not valid

 private:
  std::unique_ptr<c10::FunctionSchema> inferred_;  // none: boxed
  bool takes_symint_ = false;
  std::vector<const char*> reads_;
  int results_ = -1;
};

// Where an ANYDEVICE_IMPL block puts its kernels.
class Kernels {
 public:
  Kernels(const char* ns, c10::DispatchKey key);

  void impl(const char* op, Kernel kernel);

 private:
  void leave_out(const c10::OperatorHandle& op, const std::string& reason);

  std::string ns_;
  c10::DispatchKey key_;
  torch::Library& library_;
};

// The kernel as PyTorch registers one for CUDA: with a check of the devices before it, and what a
// card refuses. Nothing if it has neither.
std::optional<torch::CppFunction> checked(const c10::OperatorHandle& op, c10::DispatchKey key,
                                          const c10::KernelFunction& target);

torch::Library& open_library(const char* ns, c10::DispatchKey key);

// The op's schema, or the one that a test has put in its place.
const c10::FunctionSchema& schema_of(const c10::OperatorHandle& op);

// The kernels that were not registered, a line for each: "aten::fill_: reason".
std::vector<std::string>& left_out();

}  // namespace anydevice
