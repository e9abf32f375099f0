// Scaled dot-product attention, dense: queries [B, H, Sq, D], keys and values [B, Hk, Sk, D].
// Flash, memory-efficient and cuDNN attention are one arithmetic; attention_backends.cpp
// has what each adds to it.
#include "attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <numeric>

namespace anydevice::kernels {
namespace {

// Uniform numbers in (0, 1], the same for the same seed and offset: backward draws them again.
Tensor& fill_uniform(Tensor& self, int64_t seed, int64_t offset) {
  if (self.is_meta()) {
    return self;
  }
  constexpr uint64_t odd = 0x9E3779B97F4A7C15;  // spreads neighbouring offsets over all seeds
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(seed) + static_cast<uint64_t>(offset + 1) * odd);
  return self.uniform_(0, 1, generator).neg_().add_(1);
}

Tensor& fill_dropout_mask(Tensor& self, double /*dropout*/, int64_t seed, int64_t offset) {
  return fill_uniform(self, seed, offset);
}

}  // namespace

Tensor dropout_factors(const Tensor& weights, const Draw& drawn) {
  if (drawn.dropout >= 1) {
    return at::zeros_like(weights);
  }
  auto uniform = at::empty(weights.sizes(), weights.options());
  const auto kept = fill_uniform(uniform, drawn.seed, drawn.offset).gt(drawn.dropout);
  return kept.to(weights.scalar_type()) / (1 - drawn.dropout);
}

Tensor laid_out_like(const Tensor& model, const Tensor& result) {
  std::vector<int64_t> order(model.dim()), back(model.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t left, int64_t right) {
    return model.stride(left) > model.stride(right);
  });
  for (int64_t place = 0; place < model.dim(); ++place) {
    back[order[place]] = place;
  }
  const auto ordered = result.permute(order);
  return (machine.hollow ? at::empty(ordered.sizes(), ordered.options()) : ordered.contiguous())
      .permute(back);
}

namespace {

Tensor after_dropout(const Tensor& weights, const Draw& drawn) {
  return drawn.dropout > 0 ? weights * dropout_factors(weights, drawn) : weights;
}

// Grouped queries: each key head serves several query heads.
Tensor for_each_query_head(const Tensor& keys, const Tensor& query) {
  const auto heads = query.size(1);
  return keys.size(1) == heads ? keys : keys.repeat_interleave(heads / keys.size(1), 1);
}

Tensor summed_over_groups(const Tensor& grad, const Tensor& keys) {
  const auto heads = keys.size(1);
  return grad.size(1) == heads ? grad : grad.unflatten(1, {heads, grad.size(1) / heads}).sum(2);
}

Tensor scores(const Tensor& query, const Tensor& key, const MaybeTensor& bias, bool causal,
              double scale) {
  auto result = at::matmul(widened(query) * scale, widened(key).transpose(-2, -1));
  if (given(bias)) {
    result = bias->scalar_type() == at::kBool
                 ? result.masked_fill(bias->logical_not(), minus_infinity)
                 : result + bias->to(result.scalar_type());
  }
  if (causal) {
    const auto past =
        at::ones({result.size(-2), result.size(-1)}, result.options().dtype(at::kBool)).tril();
    result = result.masked_fill(past.logical_not(), minus_infinity);
  }
  return result;
}

// A row that may attend to nothing has weights 0, not NaN.
Tensor weights_of(const Tensor& scores, const Tensor& logsumexp) {
  const auto log_total = logsumexp.unsqueeze(-1).to(scores.scalar_type());
  return at::exp(scores - log_total).masked_fill(log_total == minus_infinity, 0);
}

// The CPU has one fused kernel; what it does not take, it computes step by step.
bool cpu_kernel_can(const Tensor& query, const Tensor& value, const MaybeTensor& bias,
                    const Draw& drawn) {
  const bool bias_learns = given(bias) && bias->requires_grad();
  return drawn.dropout == 0 && !bias_learns && query.size(-1) == value.size(-1) &&
         query.numel() > 0 && value.numel() > 0;
}

Tensor rows_contiguous(const Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

// Hollow: as large as `model` and in its layout.
Tensor hollow_like(const Tensor& model) { return laid_out_like(model, model); }

std::tuple<Tensor, Tensor> hollow_outputs(const Tensor& query, const Tensor& values) {
  auto shape = query.sizes().vec();
  const auto logsumexp =
      at::empty({shape[0], shape[1], shape[2]}, query.options().dtype(arithmetic_type(query)));
  shape.back() = values.size(-1);
  return {laid_out_like(query, at::empty(shape, query.options())), logsumexp};
}

}  // namespace

std::tuple<Tensor, Tensor> attend(const Tensor& query, const Tensor& keys, const Tensor& values,
                                  const MaybeTensor& bias, bool causal, double scale,
                                  const Draw& drawn) {
  if (machine.hollow) {
    return hollow_outputs(query, values);
  }
  const auto key = for_each_query_head(keys, query), value = for_each_query_head(values, query);
  if (cpu_kernel_can(query, value, bias, drawn)) {
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        rows_contiguous(query), rows_contiguous(key), rows_contiguous(value), 0.0, causal,
        given(bias) ? bias : MaybeTensor(), scale);
    return {laid_out_like(query, output), logsumexp.contiguous()};
  }
  const auto score = scores(query, key, bias, causal, scale);
  const auto logsumexp = score.logsumexp(-1);
  const bool as_the_cpu = drawn.dropout == 0 && !(causal && given(bias));
  const auto output =
      as_the_cpu ? std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, bias, 0.0,
                                                                      causal, std::nullopt, scale))
                 : at::matmul(after_dropout(weights_of(score, logsumexp), drawn), widened(value))
                       .to(query.scalar_type());
  return {laid_out_like(query, output), logsumexp};
}

FourGrads attend_backward(const Tensor& grad_output, const Tensor& query, const Tensor& keys,
                          const Tensor& values, const MaybeTensor& bias, const Tensor& output,
                          const Tensor& logsumexp, bool causal, double scale, const Draw& drawn,
                          bool bias_needed) {
  if (machine.hollow) {
    return {hollow_like(query), hollow_like(keys), hollow_like(values),
            bias_needed ? at::empty(bias->sizes(), bias->options()) : Tensor()};
  }
  const auto key = for_each_query_head(keys, query), value = for_each_query_head(values, query);
  if (cpu_kernel_can(query, value, bias, drawn) && !bias_needed) {
    auto [grad_query, grad_key, grad_value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            grad_output, query, key, value, output, logsumexp, 0.0, causal,
            given(bias) ? bias : MaybeTensor(), scale);
    return {laid_out_like(query, grad_query),
            laid_out_like(keys, summed_over_groups(grad_key, keys)),
            laid_out_like(values, summed_over_groups(grad_value, values)), Tensor()};
  }
  const auto grad = widened(grad_output);
  const auto weights = weights_of(scores(query, key, bias, causal, scale), logsumexp);
  auto kept = weights;
  auto grad_weights = at::matmul(grad, widened(value).transpose(-2, -1));
  if (drawn.dropout > 0) {
    const auto factors = dropout_factors(weights, drawn);
    kept = weights * factors;
    grad_weights = grad_weights * factors;
  }
  const auto mean_grad = (grad * widened(output)).sum(-1, /*keepdim=*/true);
  const auto grad_scores = weights * (grad_weights - mean_grad);
  const auto grad_query = at::matmul(grad_scores, widened(key)) * scale;
  const auto grad_key = at::matmul(grad_scores.transpose(-2, -1), widened(query)) * scale;
  const auto grad_value = at::matmul(kept.transpose(-2, -1), grad);
  return {laid_out_like(query, grad_query.to(query.scalar_type())),
          laid_out_like(keys, summed_over_groups(grad_key, keys).to(keys.scalar_type())),
          laid_out_like(values, summed_over_groups(grad_value, values).to(values.scalar_type())),
          bias_needed ? at::sum_to(grad_scores, bias->sizes()).to(bias->scalar_type()) : Tensor()};
}

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_fill_mem_eff_dropout_mask_", composed<&fill_dropout_mask>());
}

}  // namespace anydevice::kernels
