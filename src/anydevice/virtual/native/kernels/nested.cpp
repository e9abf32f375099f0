// The sizes, strides and offsets of a nested tensor's parts: numbers on the host, wherever it lies.
#include "kernel.h"

#include <ATen/NestedTensorImpl.h>

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

}  // namespace

ANYDEVICE_IMPL(aten, NestedTensorCUDA, m) {
  m.impl("_nested_tensor_size", &nested_sizes);
  m.impl("_nested_tensor_strides", &nested_strides);
  m.impl("_nested_tensor_storage_offsets", &nested_offsets);
}

}  // namespace anydevice::kernels
