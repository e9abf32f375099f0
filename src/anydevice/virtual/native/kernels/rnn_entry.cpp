// The way from torch.lstm, gru, rnn_tanh and rnn_relu to _cudnn_rnn: the stubs that PyTorch calls
// when cuDNN accepts the input, which otherwise live in its CUDA library.
#include "machine.h"
#include "rnn.h"

#include <ATen/native/RNN.h>

#include <mutex>

namespace anydevice::kernels {
namespace {

// flatten_parameters() has made the parameters views of one buffer, or the call compacts them.
MaybeTensor buffer_of(TensorList params) {
  for (const auto& param : params) {
    if (!param.storage().is_alias_of(params[0].storage())) {
      return {};
    }
  }
  const auto numbers =
      static_cast<int64_t>(params[0].storage().nbytes()) / params[0].element_size();
  return at::empty({0}, params[0].options()).set_(params[0].storage(), 0, {numbers}, {1});
}

// One state a device, as PyTorch keeps them; each machine begins with none.
struct DropoutStates {
  std::mutex mutex;
  std::array<Tensor, max_gpus> of;
};

DropoutStates& dropout_states() {
  static auto* states = new DropoutStates();
  return *states;
}

MaybeTensor dropout_state(double dropout, bool train, const Tensor& input) {
  if (dropout == 0 || !train) {
    return {};
  }
  auto& states = dropout_states();
  const std::lock_guard<std::mutex> lock(states.mutex);
  auto& state = states.of[input.get_device()];
  if (!state.defined()) {
    const auto seed = at::empty({}, at::dtype(at::kLong)).random_().item<int64_t>();
    state = at::_cudnn_init_dropout_state(dropout, train, seed, input.options().dtype(at::kByte));
  }
  return state;
}

std::tuple<Tensor, Tensor, Tensor> call(int64_t mode, const Tensor& input, const Tensor& hx,
                                        const MaybeTensor& cx, TensorList params, bool has_biases,
                                        int64_t layers, double dropout, bool train,
                                        bool bidirectional, bool batch_first,
                                        IntArrayRef batch_sizes) {
  const bool projected = given(cx) && cx->size(2) != hx.size(2);
  const auto hidden_size = projected ? cx->size(2) : hx.size(2);
  const auto [output, hy, cy, reserve, buffer] = at::_cudnn_rnn(
      input, params, (has_biases ? 4 : 2) + (projected ? 1 : 0), buffer_of(params), hx, cx, mode,
      hidden_size, projected ? hx.size(2) : 0, layers, batch_first, dropout, train, bidirectional,
      batch_sizes, dropout_state(dropout, train, input));
  return {output, hy, cy};
}

template <RnnMode mode>
void rnn(Tensor& output, Tensor& hy, const Tensor& input, const Tensor& hx, TensorList params,
         bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional,
         bool batch_first) {
  std::tie(output, hy, std::ignore) = call(mode, input, hx, {}, params, has_biases, layers, dropout,
                                           train, bidirectional, batch_first, {});
}

IntArrayRef sizes_in(const Tensor& batch_sizes) {
  TORCH_CHECK(batch_sizes.dim() == 1, "batch_sizes tensor should be 1D");
  return {batch_sizes.const_data_ptr<int64_t>(), static_cast<size_t>(batch_sizes.size(0))};
}

template <RnnMode mode>
void packed_rnn(Tensor& output, Tensor& hy, const Tensor& input, const Tensor& batch_sizes,
                const Tensor& hx, TensorList params, bool has_biases, int64_t layers,
                double dropout, bool train, bool bidirectional) {
  std::tie(output, hy, std::ignore) = call(mode, input, hx, {}, params, has_biases, layers, dropout,
                                           train, bidirectional, false, sizes_in(batch_sizes));
}

void lstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& input, TensorList states,
          TensorList params, bool has_biases, int64_t layers, double dropout, bool train,
          bool bidirectional, bool batch_first) {
  std::tie(output, hy, cy) = call(rnn_lstm, input, states[0], states[1], params, has_biases, layers,
                                  dropout, train, bidirectional, batch_first, {});
}

void packed_lstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& input,
                 const Tensor& batch_sizes, TensorList states, TensorList params, bool has_biases,
                 int64_t layers, double dropout, bool train, bool bidirectional) {
  std::tie(output, hy, cy) = call(rnn_lstm, input, states[0], states[1], params, has_biases, layers,
                                  dropout, train, bidirectional, false, sizes_in(batch_sizes));
}

}  // namespace

void forget_dropout_states() { dropout_states().of.fill(Tensor()); }

ANYDEVICE_IMPL(aten, CUDA, m) {
  static_cast<void>(m);  // stubs, not ops: only the moment is the same
  at::native::lstm_cudnn_stub.set_cuda_dispatch_ptr(&lstm);
  at::native::gru_cudnn_stub.set_cuda_dispatch_ptr(&rnn<rnn_gru>);
  at::native::rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&rnn<rnn_tanh>);
  at::native::rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&rnn<rnn_relu>);
  at::native::lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_lstm);
  at::native::gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<rnn_gru>);
  at::native::rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<rnn_tanh>);
  at::native::rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<rnn_relu>);
}

}  // namespace anydevice::kernels
