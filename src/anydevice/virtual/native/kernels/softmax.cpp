// softmax and log_softmax with half_to_float: half in, float out, which only CUDA's kernels can do.
// Every other call is the CPU kernel's own.
#include "kernel.h"

#include <ATen/MetaFunctions.h>

namespace anydevice::kernels {
namespace {

Tensor softmax_input(const Tensor& self, bool half_to_float) {
  TORCH_CHECK(
      !half_to_float || self.scalar_type() == at::kHalf || self.scalar_type() == at::kBFloat16,
      "conversion is supported for Half and BFloat16 type only");
  return half_to_float ? self.to(at::kFloat) : self;
}

using Softmax = Tensor(const Tensor&, int64_t, bool);
using SoftmaxBackward = Tensor(const Tensor&, const Tensor&, int64_t, ScalarType);

template <Softmax* forward, Softmax* shapes>
Tensor soft(const Tensor& self, int64_t dim, bool half_to_float) {
  const auto input = softmax_input(self, half_to_float);
  return machine.hollow ? shapes(input, dim, false) : forward(input, dim, false);
}

template <Tensor& (*forward)(Tensor&, const Tensor&, int64_t, bool)>
Tensor& soft_out(const Tensor& self, int64_t dim, bool half_to_float, Tensor& out) {
  return forward(out, softmax_input(self, half_to_float), dim, false);
}

template <SoftmaxBackward* backward, SoftmaxBackward* shapes>
Tensor soft_backward(const Tensor& grad, const Tensor& output, int64_t dim, ScalarType input_type) {
  if (machine.hollow) {
    return shapes(grad, output, dim, input_type);
  }
  return backward(grad, output, dim, output.scalar_type()).to(input_type);
}

template <SoftmaxBackward* backward, SoftmaxBackward* shapes>
Tensor& soft_backward_out(const Tensor& grad, const Tensor& output, int64_t dim,
                          ScalarType input_type, Tensor& grad_input) {
  return write(grad_input, soft_backward<backward, shapes>(grad, output, dim, input_type));
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_softmax", composed<&soft<&at::_softmax, &at::meta::_softmax>>());
  m.impl("_softmax.out", composed<&soft_out<&at::_softmax_out>>());
  m.impl(
      "_softmax_backward_data",
      composed<&soft_backward<&at::_softmax_backward_data, &at::meta::_softmax_backward_data>>());
  m.impl("_softmax_backward_data.out",
         composed<
             &soft_backward_out<&at::_softmax_backward_data, &at::meta::_softmax_backward_data>>());
  m.impl("_log_softmax", composed<&soft<&at::_log_softmax, &at::meta::_log_softmax>>());
  m.impl("_log_softmax.out", composed<&soft_out<&at::_log_softmax_out>>());
  m.impl("_log_softmax_backward_data",
         composed<&soft_backward<&at::_log_softmax_backward_data,
                                 &at::meta::_log_softmax_backward_data>>());
  m.impl("_log_softmax_backward_data.out",
         composed<&soft_backward_out<&at::_log_softmax_backward_data,
                                     &at::meta::_log_softmax_backward_data>>());
}

}  // namespace anydevice::kernels
