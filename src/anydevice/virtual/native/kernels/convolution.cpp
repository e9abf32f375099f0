// cuDNN's convolutions, with and without what is fused behind them, and the depthwise ones.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

Tensor convolve(const Tensor& input, const Tensor& weight, const MaybeTensor& bias,
                SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                const SymInt& groups) {
  const std::vector<SymInt> no_output_padding(stride.size(), 0);
  return at::convolution_symint(input, weight, bias, stride, padding, dilation,
                                /*transposed=*/false, no_output_padding, groups);
}

Tensor cudnn_convolution(const Tensor& self, const Tensor& weight, SymIntArrayRef padding,
                         SymIntArrayRef stride, SymIntArrayRef dilation, SymInt groups,
                         bool /*benchmark*/, bool /*deterministic*/, bool /*allow_tf32*/) {
  return convolve(self, weight, {}, stride, padding, dilation, groups);
}

Tensor& cudnn_convolution_out(const Tensor& self, const Tensor& weight, SymIntArrayRef padding,
                              SymIntArrayRef stride, SymIntArrayRef dilation, SymInt groups,
                              bool /*benchmark*/, bool /*deterministic*/, bool /*allow_tf32*/,
                              Tensor& out) {
  return write(out, convolve(self, weight, {}, stride, padding, dilation, groups));
}

Tensor cudnn_convolution_transpose(const Tensor& self, const Tensor& weight, SymIntArrayRef padding,
                                   SymIntArrayRef output_padding, SymIntArrayRef stride,
                                   SymIntArrayRef dilation, SymInt groups, bool /*benchmark*/,
                                   bool /*deterministic*/, bool /*allow_tf32*/) {
  return at::convolution_symint(self, weight, {}, stride, padding, dilation, /*transposed=*/true,
                                output_padding, groups);
}

Tensor cudnn_convolution_relu(const Tensor& self, const Tensor& weight, const MaybeTensor& bias,
                              SymIntArrayRef stride, SymIntArrayRef padding,
                              SymIntArrayRef dilation, SymInt groups) {
  return convolve(self, weight, bias, stride, padding, dilation, groups).relu_();
}

Tensor cudnn_convolution_add_relu(const Tensor& self, const Tensor& weight, const Tensor& z,
                                  const std::optional<Scalar>& alpha, const MaybeTensor& bias,
                                  SymIntArrayRef stride, SymIntArrayRef padding,
                                  SymIntArrayRef dilation, SymInt groups) {
  return convolve(self, weight, bias, stride, padding, dilation, groups)
      .add_(z, alpha.value_or(1.0))
      .relu_();
}

Tensor depthwise(const Tensor& self, const Tensor& weight, SymIntArrayRef /*kernel_size*/,
                 const MaybeTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                 SymIntArrayRef dilation) {
  return convolve(self, weight, bias, stride, padding, dilation, self.sym_size(1));
}

Tensor& depthwise_out(const Tensor& self, const Tensor& weight, SymIntArrayRef kernel_size,
                      const MaybeTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                      SymIntArrayRef dilation, Tensor& out) {
  return write(out, depthwise(self, weight, kernel_size, bias, stride, padding, dilation));
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("cudnn_convolution", composed<&cudnn_convolution>());
  m.impl("cudnn_convolution.out", composed<&cudnn_convolution_out>());
  m.impl("cudnn_convolution_transpose", composed<&cudnn_convolution_transpose>());
  m.impl("cudnn_convolution_relu", composed<&cudnn_convolution_relu>());
  m.impl("cudnn_convolution_add_relu", composed<&cudnn_convolution_add_relu>());
  m.impl("_conv_depthwise2d", composed<&depthwise>());
  m.impl("_conv_depthwise2d.out", composed<&depthwise_out>());
  m.impl("conv_depthwise3d", composed<&depthwise>());
}

}  // namespace anydevice::kernels
