// Flash, memory-efficient and cuDNN attention as autograd calls them: each with its own shapes of
// logsumexp and its own way to keep the seed and the offset that dropout was drawn with.
#include "attention.h"

#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace anydevice::kernels {

Draw draw(double dropout, uint64_t numbers, DeviceIndex device) {
  if (dropout == 0) {
    return {};
  }
  auto generator = default_generator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const auto offset = generator.get_offset();
  generator.set_offset(offset + (numbers + 3) / 4 * 4);
  return {dropout, static_cast<int64_t>(generator.current_seed()), static_cast<int64_t>(offset)};
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return sdp::calculate_scale(query, scale).expect_float();
}

void refuse_other_than_half(const Tensor& query) {
  TORCH_CHECK(at::isReducedFloatingType(query.scalar_type()),
              "FlashAttention only support fp16 and bf16 data type");
}

Tensor kept_number(int64_t value, const Tensor& like) {
  return is_capturing() ? kept_on_device({value}, {}, at::kLong, like)
                        : at::scalar_tensor(value, at::dtype(at::kLong));
}

void warn_of_order(Fused kernel) {
  const auto& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicAlgorithmsWarnOnly()) {
    return;
  }
  constexpr auto rest =
      " defaults to a non-deterministic algorithm. To explicitly enable determinism call "
      "torch.use_deterministic_algorithms(True, warn_only=False).";
  switch (kernel) {  // each is warned of once
    case Fused::flash:
      TORCH_WARN_ONCE("Flash Attention", rest);
      break;
    case Fused::efficient:
      TORCH_WARN_ONCE("Memory Efficient attention", rest);
      break;
    case Fused::cudnn:
      TORCH_WARN_ONCE("cuDNN Attention", rest);
      break;
  }
}

Tensor kept_on_device(std::initializer_list<int64_t> values, IntArrayRef shape, ScalarType type,
                      const Tensor& like) {
  auto kept = at::empty(shape, like.options().dtype(type));
  if (!machine.hollow) {
    std::copy(values.begin(), values.end(), static_cast<int64_t*>(kept.mutable_data_ptr()));
  }
  return kept;
}

int64_t number_in(const Tensor& kept, int64_t place) {
  const bool readable = kept.defined() && kept.numel() > place && !kept.is_meta() &&
                        !(kept.is_cuda() && machine.hollow);
  return readable ? static_cast<const int64_t*>(kept.const_data_ptr())[place] : 0;
}

namespace {

void check_devices(const char* method, const Tensor& query, const Tensor& key, const Tensor& value,
                   const MaybeTensor& bias) {
  std::optional<Device> common;
  c10::impl::check_and_update_common_device(common, query, method, "query");
  c10::impl::check_and_update_common_device(common, key, method, "key");
  c10::impl::check_and_update_common_device(common, value, method, "value");
  c10::impl::check_and_update_common_device(common, bias, method, "attn_bias");
}

// ---- flash: seed and offset side by side on the device ----

// What is left of the weights, in whole blocks of 128; those that were dropped are negative.
Tensor debug_mask(const Tensor& query, const Tensor& key, bool causal, double scale,
                  const Draw& drawn) {
  const auto shared = query.size(1) / key.size(1);  // heads of queries to one of keys
  const auto keys_of_each = key.repeat_interleave(shared, 1).to(at::kFloat);
  auto scores = at::matmul(query.to(at::kFloat), keys_of_each.transpose(-2, -1)) * scale;
  const auto queries = scores.size(-2), keys = scores.size(-1);
  if (causal) {
    scores.masked_fill_(at::ones({queries, keys}, at::kBool).triu(keys - queries + 1),
                        -std::numeric_limits<double>::infinity());
  }
  const auto weights = scores.softmax(-1);
  const auto signs = at::where(dropout_factors(weights, drawn) > 0, 1.0, -1.0);
  const auto missing = [](int64_t size) { return (128 - size % 128) % 128; };
  return at::constant_pad_nd((weights * signs).to(query.scalar_type()),
                             {0, missing(keys), 0, missing(queries)});
}

FlashOutputs flash(const Tensor& query, const Tensor& key, const Tensor& value, double dropout,
                   bool causal, bool return_debug_mask, std::optional<double> scale) {
  check_devices("wrapper_CUDA___scaled_dot_product_flash_attention", query, key, value, {});
  refuse_other_than_half(query);
  const auto drawn = draw(dropout, query.size(0) * query.size(1) * 32, query.get_device());
  auto [output, logsumexp] =
      on_host(&attend, query, key, value, MaybeTensor(), causal, scale_of(query, scale), drawn);
  return {output,
          logsumexp,
          Tensor(),
          Tensor(),
          query.sym_size(2),
          key.sym_size(2),
          kept_on_device({drawn.seed, drawn.offset}, {2}, at::kUInt64, query),
          kept_on_device({}, {}, at::kUInt64, query),
          return_debug_mask && dropout > 0 && !machine.hollow
              ? on_host(&debug_mask, query, key, causal, scale_of(query, scale), drawn)
              : at::empty({0}, query.options())};
}

ThreeGrads flash_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                          const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                          const Tensor&, const Tensor&, SymInt, SymInt, double dropout, bool causal,
                          const Tensor& rng_state, const Tensor& /*unused*/,
                          std::optional<double> scale) {
  warn_of_order(Fused::flash);
  return first_three(on_host(&attend_backward, grad_output, query, key, value, MaybeTensor(),
                             output, logsumexp, causal, scale_of(query, scale),
                             Draw{dropout, number_in(rng_state, 0), number_in(rng_state, 1)},
                             false));
}

// ---- memory-efficient: seed and offset each by itself, logsumexp in whole blocks of 32 queries
// ----

Tensor in_memory_as_bshd(const Tensor& result) {
  return result.transpose(1, 2).contiguous().transpose(1, 2);
}

std::tuple<Tensor, Tensor> attend_in_blocks(const Tensor& query, const Tensor& key,
                                            const Tensor& value, const MaybeTensor& bias,
                                            bool causal, double scale, const Draw& drawn,
                                            bool logsumexp_needed) {
  auto [output, logsumexp] = attend(query, key, value, bias, causal, scale, drawn);
  const auto queries = logsumexp.size(-1);
  logsumexp = logsumexp_needed
                  ? at::constant_pad_nd(logsumexp, {0, in_whole_blocks(queries) - queries},
                                        std::numeric_limits<double>::infinity())
                  : at::empty({query.size(0), query.size(1), 0}, logsumexp.options());
  // Doubles, which a card computes by plain mathematics, stay as that leaves them.
  const bool plain = output.scalar_type() == at::kDouble;
  return {plain ? output : in_memory_as_bshd(output), logsumexp};
}

FourGrads attend_in_blocks_backward(const Tensor& grad_output, const Tensor& query,
                                    const Tensor& key, const Tensor& value, const MaybeTensor& bias,
                                    const Tensor& output, const Tensor& logsumexp, bool causal,
                                    double scale, const Draw& drawn, bool bias_needed) {
  const auto [grad_query, grad_key, grad_value, grad_bias] = attend_backward(
      grad_output, query, key, value, bias, output,
      logsumexp.narrow(-1, 0, query.size(2)).contiguous(), causal, scale, drawn, bias_needed);
  return {in_memory_as_bshd(grad_query), in_memory_as_bshd(grad_key), in_memory_as_bshd(grad_value),
          grad_bias};
}

FourGrads efficient(const Tensor& query, const Tensor& key, const Tensor& value,
                    const MaybeTensor& bias, bool compute_logsumexp, double dropout, bool causal,
                    std::optional<double> scale) {
  check_devices("wrapper_CUDA___scaled_dot_product_efficient_attention", query, key, value, bias);
  const auto numbers = query.size(0) * query.size(1) * query.size(2) * key.size(2);
  const auto drawn = draw(dropout, numbers, query.get_device());
  auto [output, logsumexp] = on_host(&attend_in_blocks, query, key, value, bias, causal,
                                     scale_of(query, scale), drawn, compute_logsumexp);
  return {output, logsumexp, kept_number(drawn.seed, query), kept_number(drawn.offset, query)};
}

FourGrads efficient_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                             const Tensor& value, const Tensor& bias, const Tensor& output,
                             const Tensor& logsumexp, const Tensor& seed, const Tensor& offset,
                             double dropout, std::array<bool, 4> needed, bool causal,
                             std::optional<double> scale) {
  if (!grad_output.defined()) {
    return {};
  }
  warn_of_order(Fused::efficient);
  return on_host(&attend_in_blocks_backward, grad_output, query, key, value, MaybeTensor(bias),
                 output, logsumexp, causal, scale_of(query, scale),
                 Draw{dropout, number_in(seed), number_in(offset)}, bias.defined() && needed[3]);
}

// ---- cuDNN: seed and offset on the device, logsumexp with a last dimension of 1 ----

std::tuple<Tensor, Tensor> attend_for_cudnn(const Tensor& query, const Tensor& key,
                                            const Tensor& value, const MaybeTensor& bias,
                                            bool causal, double scale, const Draw& drawn,
                                            bool logsumexp_needed) {
  auto [output, logsumexp] = attend(query, key, value, bias, causal, scale, drawn);
  return {output, logsumexp_needed ? logsumexp.unsqueeze(-1) : Tensor()};
}

}  // namespace

FlashOutputs cudnn(const Tensor& query, const Tensor& key, const Tensor& value,
                   const MaybeTensor& bias, bool compute_logsumexp, double dropout, bool causal,
                   bool /*return_debug_mask*/, std::optional<double> scale) {
  check_devices("wrapper_CUDA___scaled_dot_product_cudnn_attention", query, key, value, bias);
  const auto numbers = query.size(0) * query.size(1) * query.size(2) * key.size(2);
  const auto drawn = draw(dropout, numbers, query.get_device());
  auto [output, logsumexp] = on_host(&attend_for_cudnn, query, key, value, bias, causal,
                                     scale_of(query, scale), drawn, compute_logsumexp);
  return {output,
          logsumexp,
          Tensor(),
          Tensor(),
          query.sym_size(2),
          key.sym_size(2),
          kept_on_device({drawn.seed}, {}, at::kLong, query),
          kept_on_device({drawn.offset}, {}, at::kLong, query),
          Tensor()};
}

ThreeGrads cudnn_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                          const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                          const Tensor& seed, const Tensor& offset, const Tensor& bias,
                          const Tensor&, const Tensor&, SymInt, SymInt, double dropout, bool causal,
                          std::optional<double> scale) {
  if (!grad_output.defined()) {
    return {};
  }
  warn_of_order(Fused::cudnn);
  return first_three(on_host(&attend_backward, grad_output, query, key, value, MaybeTensor(bias),
                             output, logsumexp.squeeze(-1), causal, scale_of(query, scale),
                             Draw{dropout, number_in(seed), number_in(offset)}, false));
}

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_flash_attention", &flash);
  m.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  m.impl("_scaled_dot_product_efficient_attention", &efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  m.impl("_scaled_dot_product_cudnn_attention", &cudnn);
  m.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace anydevice::kernels
