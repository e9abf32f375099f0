// The sizes, strides and offsets of a nested tensor's parts: numbers on the host, wherever it lies.
#include "kernel.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/ops/_scaled_dot_product_attention_math_native.h>

namespace anydevice::kernels {
namespace {

Tensor nested_sizes(const Tensor& self) {
  return at::native::get_nested_tensor_impl(self)->get_nested_sizes();
}

Tensor nested_strides(const Tensor& self) {
  return at::native::get_nested_tensor_impl(self)->get_nested_strides();
}

Tensor nested_offsets(const Tensor& self) {
  return at::native::get_nested_tensor_impl(self)->get_storage_offsets();
}

// In the place of the card's fused kernels, which take transposed ones; PyTorch's own does not.
std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const MaybeTensor& mask, double dropout, bool causal,
                                     const MaybeTensor& dropout_mask, std::optional<double> scale,
                                     bool enable_gqa) {
  const auto laid_out = [&](const Tensor& tensor) {
    return tensor.is_cuda() && tensor.is_nested() ? tensor.contiguous() : tensor;
  };
  return at::native::_scaled_dot_product_attention_math(laid_out(query), laid_out(key),
                                                        laid_out(value), mask, dropout, causal,
                                                        dropout_mask, scale, enable_gqa);
}

}  // namespace

ANYDEVICE_IMPL(aten, AutogradNestedTensor, m) {
  m.impl("_scaled_dot_product_attention_math", &attention);
}

ANYDEVICE_IMPL(aten, NestedTensorCUDA, m) {
  m.impl("_scaled_dot_product_attention_math", &attention);
  m.impl("_nested_tensor_size", &nested_sizes);
  m.impl("_nested_tensor_strides", &nested_strides);
  m.impl("_nested_tensor_storage_offsets", &nested_offsets);
}

}  // namespace anydevice::kernels
