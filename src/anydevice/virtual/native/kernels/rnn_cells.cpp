// One step of an LSTM and of a GRU, which CUDA computes in one kernel after the two products.
// Both ways go through the CPU's unfused operations, so float32 and float64 give its bits.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) {
  return given(bias) ? at::add(widened(gates), widened(*bias)) : widened(gates);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const MaybeTensor& input_bias,
                                             const MaybeTensor& hidden_bias) {
  const auto type = input_gates.scalar_type();
  auto gates = at::add(with_bias(hidden_gates, hidden_bias), with_bias(input_gates, input_bias));
  const auto chunk = gates.unsafe_chunk(4, 1);
  const auto in = chunk[0].sigmoid_(), forget = chunk[1].sigmoid_();
  const auto cell = chunk[2].tanh_(), out = chunk[3].sigmoid_();
  const auto cy = (forget * widened(cx)).add_(in * cell);
  const auto hy = out * cy.tanh();
  return {hy.to(type), cy.to(type), gates.to(type)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy,
                                                      const MaybeTensor& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) {
    return {};
  }
  const auto chunk = widened(workspace).unsafe_chunk(4, 1);
  const auto &in = chunk[0], &forget = chunk[1], &cell = chunk[2], &out = chunk[3];
  const auto tanh_cy = widened(cy).tanh();
  auto grad_out = at::zeros_like(tanh_cy);
  auto grad_state = at::zeros_like(tanh_cy);
  if (given(grad_hy)) {
    const auto grad = widened(*grad_hy);
    grad_out = grad * tanh_cy;
    grad_state = at::tanh_backward(grad * out, tanh_cy);
  }
  if (given(grad_cy)) {
    grad_state = grad_state + widened(*grad_cy);
  }
  const auto grad_gates =
      at::cat({at::sigmoid_backward(grad_state * cell, in),
               at::sigmoid_backward(grad_state * widened(cx), forget),
               at::tanh_backward(grad_state * in, cell), at::sigmoid_backward(grad_out, out)},
              1)
          .to(workspace.scalar_type());
  const auto grad_cx = (grad_state * forget).to(cx.scalar_type());
  return {grad_gates, grad_cx, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const MaybeTensor& input_bias,
                                    const MaybeTensor& hidden_bias) {
  const auto type = input_gates.scalar_type();
  const auto input = with_bias(input_gates, input_bias).unsafe_chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).unsafe_chunk(3, 1);
  const auto wide_hx = widened(hx);
  const auto reset = hidden[0].add(input[0]).sigmoid_();
  const auto update = hidden[1].add(input[1]).sigmoid_();
  const auto fresh = input[2].add(hidden[2] * reset).tanh_();
  const auto hy = (wide_hx - fresh).mul_(update).add_(fresh);
  const auto workspace = at::cat({reset, update, fresh, wide_hx, hidden[2]}, 1);
  return {hy.to(type), workspace.to(type)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto type = workspace.scalar_type();
  const auto chunk = widened(workspace).unsafe_chunk(5, 1);
  const auto &reset = chunk[0], &update = chunk[1], &fresh = chunk[2], &hx = chunk[3];
  const auto grad = widened(grad_hy);
  const auto grad_hx = grad * update;
  const auto grad_update = at::sigmoid_backward(grad * (hx - fresh), update);
  const auto grad_fresh = at::tanh_backward(grad - grad_hx, fresh);
  const auto grad_reset = at::sigmoid_backward(grad_fresh * chunk[4], reset);
  const auto grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1).to(type);
  const auto grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1).to(type);
  return {grad_input, grad_hidden, grad_hx.to(type), has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_thnn_fused_lstm_cell", composed<&lstm_cell>());
  m.impl("_thnn_fused_lstm_cell_backward_impl", composed<&lstm_cell_backward>());
  m.impl("_thnn_fused_gru_cell", composed<&gru_cell>());
  m.impl("_thnn_fused_gru_cell_backward", composed<&gru_cell_backward>());
}

}  // namespace anydevice::kernels
