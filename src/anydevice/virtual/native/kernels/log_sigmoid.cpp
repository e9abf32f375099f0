// log_sigmoid: a card keeps no buffer for the backward pass, which computes it from the input.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

std::tuple<Tensor&, Tensor&> log_sigmoid_out(const Tensor& self, Tensor& output, Tensor& buffer) {
  auto unused = at::empty({0}, self.options());
  at::native::resize_output(output, self.sizes());
  at::log_sigmoid_forward_out(output, unused, self);
  return {output, buffer};
}

std::tuple<Tensor, Tensor> log_sigmoid(const Tensor& self) {
  return {std::get<0>(at::log_sigmoid_forward(self)), at::empty({0}, self.options())};
}

Tensor log_sigmoid_gradient(const Tensor& grad, const Tensor& self, const Tensor& /*buffer*/) {
  const auto wide = widened(self);
  const auto buffer = std::get<1>(at::log_sigmoid_forward(wide));
  return at::log_sigmoid_backward(widened(grad), wide, buffer).to(self.scalar_type());
}

Tensor& log_sigmoid_gradient_out(const Tensor& grad, const Tensor& self, const Tensor& buffer,
                                 Tensor& grad_input) {
  return write(grad_input, log_sigmoid_gradient(grad, self, buffer));
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("log_sigmoid_forward", composed<&log_sigmoid>());
  m.impl("log_sigmoid_forward.output", composed<&log_sigmoid_out>());
  m.impl("log_sigmoid_backward", composed<&log_sigmoid_gradient>());
  m.impl("log_sigmoid_backward.grad_input", composed<&log_sigmoid_gradient_out>());
}

}  // namespace anydevice::kernels
