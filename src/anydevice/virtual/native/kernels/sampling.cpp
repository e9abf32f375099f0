// cuDNN's bilinear grid sampler and affine grid: zeros outside, corners aligned.
#include "kernel.h"

#include <ATen/native/GridSamplerUtils.h>

namespace anydevice::kernels {
namespace {

constexpr auto kBilinear =
    static_cast<int64_t>(at::native::detail::GridSamplerInterpolation::Bilinear);
constexpr auto kZeros = static_cast<int64_t>(at::native::detail::GridSamplerPadding::Zeros);

Tensor grid_sampler(const Tensor& self, const Tensor& grid) {
  return at::grid_sampler_2d(self, grid, kBilinear, kZeros, /*align_corners=*/true);
}

std::tuple<Tensor, Tensor> grid_sampler_backward(const Tensor& self, const Tensor& grid,
                                                 const Tensor& grad_output) {
  return at::grid_sampler_2d_backward(grad_output, self, grid, kBilinear, kZeros,
                                      /*align_corners=*/true, {true, true});
}

Tensor affine_grid(const Tensor& theta, int64_t n, int64_t c, int64_t h, int64_t w) {
  return at::affine_grid_generator(theta, {n, c, h, w}, /*align_corners=*/true);
}

Tensor affine_grid_backward(const Tensor& grad, int64_t n, int64_t c, int64_t h, int64_t w) {
  return at::affine_grid_generator_backward(grad, {n, c, h, w}, /*align_corners=*/true);
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("cudnn_grid_sampler", composed<&grid_sampler>());
  m.impl("cudnn_grid_sampler_backward", composed<&grid_sampler_backward>());
  m.impl("cudnn_affine_grid_generator", composed<&affine_grid>());
  m.impl("cudnn_affine_grid_generator_backward", composed<&affine_grid_backward>());
}

}  // namespace anydevice::kernels
