// CTC loss as cuDNN computes it: the costs and, at once, their gradient with regard to log_probs.
#include "on_host.h"

namespace anydevice::kernels {
namespace {

// The native kernel is chosen even where cuDNN's would do: it knows every blank, type and length.
bool never_cudnn(const Tensor&, const Tensor&, IntArrayRef, IntArrayRef, int64_t) { return false; }

bool never_cudnn_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
  return false;
}

std::tuple<Tensor, Tensor> loss_and_gradient(const Tensor& log_probs, const Tensor& targets,
                                             IntArrayRef input_lengths, IntArrayRef target_lengths,
                                             int64_t blank, bool zero_infinity) {
  const auto labels = targets.to(at::kLong);
  const auto [loss, log_alpha] =
      at::_ctc_loss(log_probs, labels, input_lengths, target_lengths, blank, zero_infinity);
  const auto grad = at::_ctc_loss_backward(at::ones_like(loss), log_probs, labels, input_lengths,
                                           target_lengths, loss, log_alpha, blank, zero_infinity);
  return {loss, grad};
}

std::tuple<Tensor, Tensor> loss_and_gradient_tensor(const Tensor& log_probs, const Tensor& targets,
                                                    const Tensor& input_lengths,
                                                    const Tensor& target_lengths, int64_t blank,
                                                    bool zero_infinity) {
  const auto labels = targets.to(at::kLong);
  const auto inputs = input_lengths.to(at::kLong), outputs = target_lengths.to(at::kLong);
  const auto [loss, log_alpha] =
      at::_ctc_loss(log_probs, labels, inputs, outputs, blank, zero_infinity);
  const auto grad = at::_ctc_loss_backward(at::ones_like(loss), log_probs, labels, inputs, outputs,
                                           loss, log_alpha, blank, zero_infinity);
  return {loss, grad};
}

// Labels and lengths may lie on the host, so the devices are not compared.
std::tuple<Tensor, Tensor> ctc_loss(const Tensor& log_probs, const Tensor& targets,
                                    IntArrayRef input_lengths, IntArrayRef target_lengths,
                                    int64_t blank, bool /*deterministic*/, bool zero_infinity) {
  return on_host(&loss_and_gradient, log_probs, targets, input_lengths, target_lengths, blank,
                 zero_infinity);
}

std::tuple<Tensor, Tensor> ctc_loss_tensor(const Tensor& log_probs, const Tensor& targets,
                                           const Tensor& input_lengths,
                                           const Tensor& target_lengths, int64_t blank,
                                           bool /*deterministic*/, bool zero_infinity) {
  return on_host(&loss_and_gradient_tensor, log_probs, targets, input_lengths, target_lengths,
                 blank, zero_infinity);
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_use_cudnn_ctc_loss", &never_cudnn);
  m.impl("_use_cudnn_ctc_loss.Tensor", &never_cudnn_tensor);
  m.impl("_cudnn_ctc_loss", &ctc_loss);
  m.impl("_cudnn_ctc_loss.Tensor", &ctc_loss_tensor);
}

}  // namespace anydevice::kernels
