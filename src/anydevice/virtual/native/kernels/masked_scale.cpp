// The backward of _fused_dropout: what the mask kept, scaled.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

Tensor masked_scale(const Tensor& self, const Tensor& mask, double scale) {
  return (widened(self) * mask.to(arithmetic_type(self)) * scale).to(self.scalar_type());
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) { m.impl("_masked_scale", composed<&masked_scale>()); }

}  // namespace anydevice::kernels
