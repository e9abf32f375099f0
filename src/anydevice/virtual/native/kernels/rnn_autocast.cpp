// Autocast's way into cuDNN's recurrent networks: always half precision, also under autocast to
// another type, and the weights cast into one buffer in cuDNN's order. PyTorch's own kernel asks
// cuDNN for that order, and so needs a card.
#include "kernel.h"

#include <ATen/autocast_mode.h>

namespace anydevice::kernels {
namespace {

Tensor in_half(const Tensor& tensor) {
  return at::autocast::cached_cast(at::kHalf, tensor, c10::kCUDA);
}

bool is_cast(const Tensor& tensor) {
  return tensor.scalar_type() != at::kHalf && at::autocast::is_eligible(tensor, c10::kCUDA);
}

// Copies that autograd sees, in a buffer that it does not; first all matrices, then all biases, as
// in flatten_weight.
std::vector<Tensor> in_one_buffer(TensorList weights, const Tensor& buffer) {
  std::vector<Tensor> cast(weights.size());
  int64_t offset = 0;
  for (const int64_t dim : {2, 1}) {
    for (size_t place = 0; place < weights.size(); ++place) {
      const auto& weight = weights[place];
      if (weight.dim() == dim) {
        cast[place] = at::empty({0}, buffer.options());
        cast[place].set_(buffer.storage(), offset, weight.sizes()).copy_(weight);
        offset += weight.numel();
      }
    }
  }
  return cast;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> cudnn_rnn_in_half(
    const Tensor& input, TensorList weights, int64_t weights_per_layer, const MaybeTensor& buffer,
    const Tensor& hx, const MaybeTensor& cx, int64_t mode, SymInt hidden_size, SymInt proj_size,
    int64_t layers, bool batch_first, double dropout, bool train, bool bidirectional,
    SymIntArrayRef batch_sizes, const MaybeTensor& dropout_state) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);
  int64_t numbers = 0;
  for (const auto& weight : weights) {
    TORCH_CHECK(weight.scalar_type() == weights[0].scalar_type(),
                "Weight scalar types do not match.");
    numbers += weight.numel();
  }
  std::vector<Tensor> cast = weights.vec();
  auto cast_buffer = or_undefined(buffer);
  if (is_cast(weights[0])) {
    cast_buffer = at::zeros({numbers}, weights[0].options().dtype(at::kHalf));
    cast = in_one_buffer(weights, cast_buffer);
  }
  return at::_cudnn_rnn_symint(in_half(input), cast, weights_per_layer, cast_buffer, in_half(hx),
                               given(cx) ? MaybeTensor(in_half(*cx)) : cx, mode, hidden_size,
                               proj_size, layers, batch_first, dropout, train, bidirectional,
                               batch_sizes, dropout_state);
}

}  // namespace

ANYDEVICE_IMPL(aten, AutocastCUDA, m) { m.impl("_cudnn_rnn", &cudnn_rnn_in_half); }

}  // namespace anydevice::kernels
