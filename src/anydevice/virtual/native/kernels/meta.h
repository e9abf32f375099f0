// Hollow GPUs only: what the files with Meta kernels in C++ share. For which arguments a kernel is
// valid, and the table by op.
#pragma once

#include "kernel.h"

#include <ATen/core/boxing/KernelFunction.h>

#include <unordered_map>

namespace anydevice::meta {

using at::Scalar;
using at::Tensor;
using torch::jit::Stack;
using MaybeTensor = std::optional<Tensor>;

using WithScalar = Tensor(const Tensor&, const Scalar&);
using WithAlpha = Tensor(const Tensor&, const Tensor&, const Scalar&);
using OfTwo = Tensor(const Tensor&, const Tensor&);

using Arguments = at::ArrayRef<c10::IValue>;
using Fits = bool(Arguments);

inline bool is_floating(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().layout() == c10::kStrided &&
         at::isFloatingType(value.toTensor().scalar_type());
}

inline bool first_is_floating(Arguments arguments) { return is_floating(arguments[0]); }

inline bool first_is_dense(Arguments arguments) {
  return arguments[0].isTensor() && arguments[0].toTensor().layout() == c10::kStrided;
}

inline bool list_is_floating(Arguments arguments) {
  const auto list = arguments[0].toListRef();
  return !list.empty() && std::all_of(list.begin(), list.end(), is_floating);
}

// Which may be of another type than the first, but not sparse.
inline bool all_are_dense(Arguments arguments) {
  return std::all_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
    return !value.isTensor() || value.toTensor().layout() == c10::kStrided;
  });
}

inline bool chooses_of_one_type(Arguments arguments) {
  return all_are_dense(arguments) && arguments[0].toTensor().scalar_type() == at::kBool &&
         arguments[1].toTensor().scalar_type() == arguments[2].toTensor().scalar_type();
}

inline bool is_masked(Arguments arguments) {
  return all_are_dense(arguments) && arguments[1].toTensor().scalar_type() == at::kBool &&
         is_floating(arguments[0]) && !arguments[2].isComplexDouble();
}

inline bool is_table(Arguments arguments) {
  return is_floating(arguments[0]) && arguments[0].toTensor().dim() == 2 &&
         first_is_dense(arguments.slice(1)) &&
         (arguments[1].toTensor().scalar_type() == at::kLong ||
          arguments[1].toTensor().scalar_type() == at::kInt);
}

// CUDA's kernels, and not the shapes, refuse other types.
inline bool of_one_type(Arguments arguments) {
  return std::all_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    return !value.isTensor() || (is_floating(value) && value.toTensor().scalar_type() ==
                                                           arguments[0].toTensor().scalar_type());
  });
}

inline bool is_alike(const c10::IValue& value, const Tensor& model) {
  if (!value.isTensor()) {
    return !value.isComplexDouble();
  }
  const auto& tensor = value.toTensor();
  return is_floating(value) && tensor.is_non_overlapping_and_dense() &&
         tensor.scalar_type() == model.scalar_type() && tensor.sizes() == model.sizes() &&
         tensor.strides() == model.strides();
}

// Where CUDA takes its quick way: lists of one length, whose tensors are alike at each place.
inline bool lists_are_alike(Arguments arguments) {
  const auto first = arguments[0].toListRef();
  return std::all_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    if (!value.isList()) {
      return !value.isTensor() && !value.isComplexDouble();
    }
    const auto list = value.toListRef();
    bool alike = list.size() == first.size();
    for (size_t place = 0; alike && place < list.size(); ++place) {
      alike = is_alike(list[place], first[place].toTensor());
    }
    return alike;
  });
}

// Other arguments go where they went before: to the Meta kernel in Python, which also knows what is
// wrong.
class Quicker final : public c10::OperatorKernel {
 public:
  Quicker(c10::KernelFunction kernel, Fits* fits) : kernel_(std::move(kernel)), fits_(fits) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const Arguments all(*stack);
    if (fits_(all.slice(all.size() - op.schema().arguments().size()))) {
      kernel_.callBoxed(op, keys, stack);
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    }
  }

 private:
  c10::KernelFunction kernel_;
  Fits* fits_;
};

using Table = std::unordered_map<std::string, c10::KernelFunction>;

c10::KernelFunction where(Fits* fits, c10::KernelFunction kernel) {
  return c10::KernelFunction::makeFromBoxedFunctor(
      std::make_unique<Quicker>(std::move(kernel), fits));
}

template <auto* function>
c10::KernelFunction kernel(Fits* fits = &first_is_floating) {
  return where(
      fits,
      c10::KernelFunction::makeFromUnboxedFunction(
          c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(function)>, function>()));
}

// Ops on each element, or on each row, of a tensor (meta_elements.cpp).
void list_elements(Table& table);

}  // namespace anydevice::meta
