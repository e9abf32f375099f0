// Batch and layer normalisation with a card's statistics, batch normalisation as cuDNN offers it
// and in the pieces that SyncBatchNorm is made of, and the backward of RMS norm.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

// ---- statistics: float32 for halves, and those that were used where nothing is trained ----

// The CPU's backward of statistics that were not trained reads them as if they had no strides.
MaybeTensor in_order(const MaybeTensor& tensor) {
  return given(tensor) ? MaybeTensor(tensor->contiguous()) : MaybeTensor();
}

// The CPU's kernels keep float32 statistics of halves with float32 weights alone.
bool weighed_in_half(const Tensor& input, const MaybeTensor& weight) {
  return at::isReducedFloatingType(input.scalar_type()) &&
         (!given(weight) || weight->scalar_type() == input.scalar_type());
}

MaybeTensor in_float(const MaybeTensor& tensor) {
  return given(tensor) ? MaybeTensor(widened(*tensor)) : MaybeTensor();
}

Tensor float_weight(const MaybeTensor& weight, const Tensor& input, IntArrayRef shape) {
  return given(weight) ? widened(*weight)
                       : at::ones(shape, input.options().dtype(arithmetic_type(input)));
}

Tensor as_weight(const Tensor& grad, const MaybeTensor& weight) {
  return grad.defined() && given(weight) ? grad.to(weight->scalar_type()) : grad;
}

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

ThreeTensors layer_norm(const Tensor& input, IntArrayRef shape, const MaybeTensor& weight,
                        const MaybeTensor& bias, double eps) {
  if (!weighed_in_half(input, weight)) {
    return at::native_layer_norm(input, shape, weight, bias, eps);
  }
  return at::native_layer_norm(input, shape, float_weight(weight, input, shape), in_float(bias),
                               eps);
}

ThreeTensors layer_norm_backward(const Tensor& grad_output, const Tensor& input, IntArrayRef shape,
                                 const Tensor& mean, const Tensor& rstd, const MaybeTensor& weight,
                                 const MaybeTensor& bias, std::array<bool, 3> needed) {
  if (!weighed_in_half(input, weight)) {
    return at::native_layer_norm_backward(grad_output, input, shape, mean, rstd, weight, bias,
                                          needed);
  }
  const auto [grad_input, grad_weight, grad_bias] =
      at::native_layer_norm_backward(grad_output, input, shape, widened(mean), widened(rstd),
                                     float_weight(weight, input, shape), in_float(bias), needed);
  return {grad_input, as_weight(grad_weight, weight), as_weight(grad_bias, bias)};
}

ThreeTensors batch_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                        const MaybeTensor& running_mean, const MaybeTensor& running_var,
                        bool training, double momentum, double eps) {
  const bool in_half = weighed_in_half(input, weight);
  const auto mean = in_half ? in_float(running_mean) : running_mean;
  const auto var = in_half ? in_float(running_var) : running_var;
  auto results =
      in_half ? at::native_batch_norm(input, float_weight(weight, input, {input.size(1)}),
                                      in_float(bias), mean, var, training, momentum, eps)
              : at::native_batch_norm(input, weight, bias, mean, var, training, momentum, eps);
  if (!training) {
    std::get<1>(results) = running_mean->to(arithmetic_type(input), /*non_blocking=*/false,
                                            /*copy=*/true);
    std::get<2>(results) = (widened(*running_var) + eps).rsqrt();
  } else if (in_half && given(running_mean)) {
    running_mean->copy_(*mean);
    running_var->copy_(*var);
  }
  return results;
}

ThreeTensors batch_norm_legit(const Tensor& input, const MaybeTensor& weight,
                              const MaybeTensor& bias, const Tensor& running_mean,
                              const Tensor& running_var, bool training, double momentum,
                              double eps) {
  return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

ThreeTensors batch_norm_without(const Tensor& input, const MaybeTensor& weight,
                                const MaybeTensor& bias, bool training, double momentum,
                                double eps) {
  return batch_norm(input, weight, bias, {}, {}, training, momentum, eps);
}

ThreeTensors native_batch_norm_backward(const Tensor& grad_output, const Tensor& input,
                                        const MaybeTensor& weight, const MaybeTensor& running_mean,
                                        const MaybeTensor& running_var, const MaybeTensor& mean,
                                        const MaybeTensor& invstd, bool training, double eps,
                                        std::array<bool, 3> needed) {
  if (!weighed_in_half(input, weight)) {
    return at::native_batch_norm_backward(grad_output, input, weight, in_order(running_mean),
                                          in_order(running_var), mean, invstd, training, eps,
                                          needed);
  }
  const auto [grad_input, grad_weight, grad_bias] = at::native_batch_norm_backward(
      grad_output, input, float_weight(weight, input, {input.size(1)}),
      in_order(in_float(running_mean)), in_order(in_float(running_var)), in_float(mean),
      in_float(invstd), training, eps, needed);
  return {grad_input, as_weight(grad_weight, weight), as_weight(grad_bias, weight)};
}

// ---- cuDNN's ----

using BatchNormOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

BatchNormOutputs batch_norm_with_reserve(const Tensor& input, const Tensor& weight,
                                         const MaybeTensor& bias, const MaybeTensor& running_mean,
                                         const MaybeTensor& running_var, bool training,
                                         double momentum, double eps) {
  if (machine.hollow) {
    const auto channels = training ? input.size(1) : 0;
    return {at::empty(input.sizes(), input.options(), input.suggest_memory_format()),
            at::empty({channels}, weight.options()), at::empty({channels}, weight.options()),
            at::empty({0}, input.options().dtype(at::kByte))};
  }
  auto [output, mean, invstd] = at::native_batch_norm(input, weight, bias, running_mean,
                                                      running_var, training, momentum, eps);
  if (!training) {
    mean = at::empty({0}, weight.options());
    invstd = at::empty({0}, weight.options());
  }
  return {output, mean, invstd, at::empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> batch_norm_out(
    const Tensor& input, const Tensor& weight, const MaybeTensor& bias,
    const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training, double momentum,
    double eps, Tensor& output, Tensor& mean, Tensor& invstd, Tensor& reserve) {
  const auto [result, result_mean, result_invstd, result_reserve] = batch_norm_with_reserve(
      input, weight, bias, running_mean, running_var, training, momentum, eps);
  write(output, result);
  write(mean, result_mean);
  write(invstd, result_invstd);
  write(reserve, result_reserve);
  return {output, mean, invstd, reserve};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(
    const Tensor& input, const Tensor& grad_output, const Tensor& weight,
    const MaybeTensor& running_mean, const MaybeTensor& running_var, const MaybeTensor& mean,
    const MaybeTensor& invstd, double eps, const Tensor& /*reserve*/) {
  if (machine.hollow) {
    return {at::empty(input.sizes(), input.options(), input.suggest_memory_format()),
            at::empty(weight.sizes(), weight.options()),
            at::empty(weight.sizes(), weight.options())};
  }
  return at::native_batch_norm_backward(grad_output, input, weight, running_mean, running_var, mean,
                                        invstd, /*train=*/true, eps, {true, true, true});
}

// Everything but dimension 1, the channels.
std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) {
      dims.push_back(dim);
    }
  }
  return dims;
}

Tensor per_channel(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = -1;
  return values.to(arithmetic_type(input)).view(shape);
}

std::tuple<Tensor, Tensor> statistics(const Tensor& input, double eps) {
  const auto [var, mean] =
      at::var_mean(widened(input), all_but_channels(input), /*unbiased=*/false, /*keepdim=*/false);
  return {mean, (var + eps).rsqrt()};
}

Tensor normalise(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                 const Tensor& mean, const Tensor& invstd, double /*eps*/) {
  auto output = widened(input) - per_channel(mean, input);
  if (given(weight)) {
    output = per_channel(*weight, input) * output;
  }
  output = output * per_channel(invstd, input);
  if (given(bias)) {
    output = output + per_channel(*bias, input);
  }
  return output.to(input.scalar_type());
}

Tensor& normalise_out(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                      const Tensor& mean, const Tensor& invstd, double eps, Tensor& out) {
  return write(out, normalise(input, weight, bias, mean, invstd, eps));
}

// Each process's mean and deviation, weighed by how many elements it saw.
std::tuple<Tensor, Tensor> gather_weighted(const Tensor& /*input*/, const Tensor& means,
                                           const Tensor& invstds, const MaybeTensor& running_mean,
                                           const MaybeTensor& running_var, double momentum,
                                           double eps, const Tensor& counts) {
  const auto weights = counts.to(means.scalar_type()).view({-1, 1});
  const auto total = weights.sum();
  const auto mean = (means * weights).sum(0) / total;
  const auto squares =
      ((invstds.pow(-2) - eps) * weights).sum(0) + ((means - mean).square() * weights).sum(0);
  if (given(running_mean)) {
    running_mean->mul_(1 - momentum).add_(mean, momentum);
  }
  if (given(running_var)) {
    running_var->mul_(1 - momentum).add_(squares / (total - 1), momentum);
  }
  return {mean, (squares / total + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather(const Tensor& input, const Tensor& means, const Tensor& invstds,
                                  const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                  double momentum, double eps, int64_t count) {
  const auto counts = at::full({means.size(0)}, count, means.options());
  return gather_weighted(input, means, invstds, running_mean, running_var, momentum, eps, counts);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> reduce_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& invstd,
    const MaybeTensor& weight, bool input_needed, bool weight_needed, bool bias_needed) {
  const auto dims = all_but_channels(input);
  const auto grad = widened(grad_output);
  const auto sum_grad = grad.sum(dims);
  const auto sum_grad_centred = (grad * (widened(input) - per_channel(mean, input))).sum(dims);
  const auto weight_type = given(weight) ? weight->scalar_type() : mean.scalar_type();
  return {input_needed ? sum_grad : Tensor(), input_needed ? sum_grad_centred : Tensor(),
          weight_needed ? at::mul(sum_grad_centred, invstd).to(weight_type) : Tensor(),
          bias_needed ? sum_grad.to(weight_type, /*non_blocking=*/false, /*copy=*/true) : Tensor()};
}

Tensor normalise_backward(const Tensor& grad_output, const Tensor& input, const Tensor& mean,
                          const Tensor& invstd, const MaybeTensor& weight, const Tensor& sum_grad,
                          const Tensor& sum_grad_centred, const Tensor& count) {
  const auto total = count.sum().to(mean.scalar_type());
  const auto centred = widened(input) - per_channel(mean, input);
  const auto slope = per_channel(invstd.square() * sum_grad_centred / total, input);
  const auto scale = given(weight) ? invstd * weight->to(invstd.scalar_type()) : invstd;
  const auto grad = widened(grad_output) - per_channel(sum_grad / total, input) - centred * slope;
  return (grad * per_channel(scale, input)).to(input.scalar_type());
}

// Step by step as autograd goes back through the CPU's unfused one: its bits.
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_output, const Tensor& input,
                                             IntArrayRef normalized_shape, const Tensor& rstd,
                                             const MaybeTensor& weight,
                                             std::array<bool, 2> needed) {
  const int64_t outer = input.dim() - static_cast<int64_t>(normalized_shape.size());
  std::vector<int64_t> outer_dims, inner_dims;
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    (dim < outer ? outer_dims : inner_dims).push_back(dim);
  }
  const auto grad = widened(grad_output), wide = widened(input), scale = widened(rstd);
  Tensor grad_input, grad_weight;
  if (needed[0]) {
    const auto scaled = given(weight) ? grad * widened(*weight) : grad;
    const auto grad_scale = (scaled * wide).sum(inner_dims, /*keepdim=*/true);
    const auto grad_mean = -0.5 * grad_scale * scale.pow(3);
    const auto grad_square = grad_mean.expand_as(wide) / c10::multiply_integers(normalized_shape);
    grad_input = (scaled * scale + grad_square * (2 * wide)).to(input.scalar_type());
  }
  if (needed[1] && given(weight)) {
    const auto product = grad * (wide * scale);
    grad_weight = (outer ? product.sum(outer_dims) : product).to(weight->scalar_type());
  }
  return {grad_input, grad_weight};
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  if (!machine.hollow) {  // meta.cpp has their shapes
    m.impl("native_layer_norm", composed<&layer_norm>());
    m.impl("native_layer_norm_backward", composed<&layer_norm_backward>());
    m.impl("native_batch_norm", composed<&batch_norm>());
    m.impl("_native_batch_norm_legit", composed<&batch_norm_legit>());
    m.impl("_native_batch_norm_legit.no_stats", composed<&batch_norm_without>());
    m.impl("native_batch_norm_backward", composed<&native_batch_norm_backward>());
  }
  m.impl("cudnn_batch_norm", composed<&batch_norm_with_reserve>());
  m.impl("cudnn_batch_norm.out", composed<&batch_norm_out>());
  m.impl("cudnn_batch_norm_backward", composed<&batch_norm_backward>());
  m.impl("batch_norm_stats", composed<&statistics>());
  m.impl("batch_norm_elemt", composed<&normalise>());
  m.impl("batch_norm_elemt.out", composed<&normalise_out>());
  m.impl("batch_norm_gather_stats", composed<&gather>());
  m.impl("batch_norm_gather_stats_with_counts", composed<&gather_weighted>());
  m.impl("batch_norm_backward_reduce", composed<&reduce_backward>());
  m.impl("batch_norm_backward_elemt", composed<&normalise_backward>());
  m.impl("_fused_rms_norm_backward", composed<&rms_norm_backward>());
}

}  // namespace anydevice::kernels
