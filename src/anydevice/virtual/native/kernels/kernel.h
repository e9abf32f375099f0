// What the kernels written from other ops share: names, the arithmetic type, optional tensors.
// Wrapped in composed<>, they see host tensors (Meta ones when hollow) and name no device.
#pragma once

#include "anydevice.h"

#include <ATen/OpMathType.h>
#include <ATen/native/Resize.h>
#include <torch/version.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

namespace anydevice::kernels {

using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::SymInt;
using at::SymIntArrayRef;
using at::Tensor;
using at::TensorList;
using MaybeTensor = std::optional<Tensor>;

inline bool given(const MaybeTensor& tensor) { return tensor.has_value() && tensor->defined(); }

inline Tensor or_undefined(const MaybeTensor& tensor) { return tensor.value_or(Tensor()); }

// CUDA computes half and bfloat16 in float and rounds once, at the end.
inline ScalarType arithmetic_type(const Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type());
}

inline Tensor widened(const Tensor& tensor) { return tensor.to(arithmetic_type(tensor)); }

inline Tensor& write(Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

}  // namespace anydevice::kernels
