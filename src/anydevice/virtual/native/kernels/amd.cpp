// MIOpen is AMD's: on an NVIDIA card its ops say so.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

void refuse_miopen(const c10::OperatorHandle& op, torch::jit::Stack*) {
  const auto name = op.schema().name().substr(std::char_traits<char>::length("aten::"));
  TORCH_CHECK(false, name, ": ATen not compiled with MIOpen support");
}

bool never_miopen(const Tensor&, const Tensor&, IntArrayRef, IntArrayRef, int64_t) { return false; }

bool never_miopen_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
  return false;
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  for (const auto* name : {"miopen_batch_norm", "miopen_batch_norm_backward", "miopen_convolution",
                           "miopen_convolution_transpose", "miopen_depthwise_convolution",
                           "miopen_convolution_relu", "miopen_convolution_add_relu", "miopen_rnn",
                           "miopen_rnn_backward", "miopen_ctc_loss", "miopen_ctc_loss.Tensor"}) {
    m.impl(name, Kernel::boxed<&refuse_miopen>({}, -1));
  }
  m.impl("_use_miopen_ctc_loss", &never_miopen);
  m.impl("_use_miopen_ctc_loss.Tensor", &never_miopen_tensor);
}

}  // namespace anydevice::kernels
