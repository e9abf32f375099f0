// Attention over sequences of different lengths laid end to end ([total, H, D], with a tensor of
// the cumulative lengths), and with windows. Its entries are in attention_varlen_entries.cpp.
#include "attention.h"

namespace anydevice::kernels {
Window flash_window(bool causal, std::optional<SymInt> left, std::optional<SymInt> right) {
  const auto number = [](const std::optional<SymInt>& size) {
    return size ? size->expect_int() : int64_t(-1);
  };
  return {false, number(left), causal ? 0 : number(right), true};
}

namespace {

enum CustomMask : int64_t { no_mask = 0, causal_from_top_left = 1, causal_from_bottom_right = 2 };

}  // namespace

Window efficient_window(int64_t mask, std::optional<int64_t> size) {
  const auto before = size.value_or(0) > 0 ? *size - 1 : -1;
  if (mask == causal_from_top_left && before < 0) {
    return {true, -1, -1, false};
  }
  return {false, before, mask == no_mask ? -1 : 0, mask != causal_from_top_left};
}

namespace {

// The window, and ALiBi's slopes, as a bias on [.., Sq, Sk]. Undefined where neither is there.
MaybeTensor bias_of(const Window& window, const MaybeTensor& bias, const MaybeTensor& slopes,
                    int64_t queries, int64_t keys, const Tensor& like) {
  const bool whole = window.before < 0 && (window.after < 0 || window.after >= keys);
  if (whole && !given(slopes)) {
    return bias;
  }
  const auto numbers = like.options().dtype(at::kLong);
  const auto shift = window.from_end ? keys - queries : 0;
  const auto distance =
      at::arange(keys, numbers).unsqueeze(0) - (at::arange(queries, numbers).unsqueeze(1) + shift);
  auto result = at::zeros({queries, keys}, like.options().dtype(at::kFloat));
  if (given(slopes)) {
    result = -slopes->view({-1, slopes->size(-1), 1, 1}) * distance.abs();
  }
  if (window.before >= 0) {
    result = result.masked_fill(distance < -window.before, minus_infinity);
  }
  if (window.after >= 0) {
    result = result.masked_fill(distance > window.after, minus_infinity);
  }
  result = given(bias) ? *bias + result.to(bias->scalar_type()) : result.to(like.scalar_type());
  return result.dim() == 3 ? result.unsqueeze(0) : result;
}

// [B, S, H, D] of the outside, [B, H, S, D] of attend().
Tensor heads_first(const Tensor& tensor) { return tensor.transpose(1, 2); }

}  // namespace

std::tuple<Tensor, Tensor> attend_windowed(const Tensor& query, const Tensor& key,
                                           const Tensor& value, const MaybeTensor& bias,
                                           const MaybeTensor& slopes, const Window& window,
                                           double scale, const Draw& drawn) {
  const auto all = bias_of(window, bias, slopes, query.size(1), key.size(1), query);
  auto [output, logsumexp] = attend(heads_first(query), heads_first(key), heads_first(value), all,
                                    window.causal, scale, drawn);
  return {laid_out_like(query, heads_first(output)), logsumexp};
}

FourGrads attend_windowed_backward(const Tensor& grad_output, const Tensor& query,
                                   const Tensor& key, const Tensor& value, const MaybeTensor& bias,
                                   const Tensor& output, const Tensor& logsumexp,
                                   const Window& window, double scale, const Draw& drawn,
                                   bool bias_needed) {
  const auto all = bias_of(window, bias, {}, query.size(1), key.size(1), query);
  auto [grad_query, grad_key, grad_value, grad_bias] = attend_backward(
      heads_first(grad_output), heads_first(query), heads_first(key), heads_first(value), all,
      heads_first(output), logsumexp.narrow(-1, 0, query.size(1)).contiguous(), window.causal,
      scale, drawn, bias_needed);
  return {heads_first(grad_query), heads_first(grad_key), heads_first(grad_value),
          bias_needed ? at::sum_to(grad_bias, bias->sizes()) : grad_bias};
}

// ---- sequences laid end to end ----

namespace {

struct Span {
  int64_t query, queries, key, keys;  // where each begins and how long it is
};

std::vector<int64_t> numbers_in(const Tensor& tensor) {
  const auto numbers = tensor.to(at::kLong).contiguous();
  const auto* begin = numbers.const_data_ptr<int64_t>();
  return {begin, begin + numbers.numel()};
}

std::vector<Span> spans_of(const Tensor& query_ends, const Tensor& key_ends,
                           const MaybeTensor& keys_used) {
  if (query_ends.is_meta()) {
    return {};  // hollow: lengths are bytes, and shapes are all that is asked for
  }
  const auto queries = numbers_in(query_ends), keys = numbers_in(key_ends);
  const auto used = given(keys_used) ? numbers_in(*keys_used) : std::vector<int64_t>();
  std::vector<Span> spans;
  for (size_t i = 0; i + 1 < queries.size(); ++i) {
    spans.push_back({queries[i], queries[i + 1] - queries[i], keys[i],
                     used.empty() ? keys[i + 1] - keys[i] : used[i]});
  }
  return spans;
}

Tensor part(const Tensor& tensor, int64_t begin, int64_t length) {
  return tensor.narrow(0, begin, length).unsqueeze(0);
}

Draw draw_of(const Draw& drawn, size_t sequence) {
  return {drawn.dropout, drawn.seed, drawn.offset + static_cast<int64_t>(sequence)};
}

}  // namespace

std::tuple<Tensor, Tensor> attend_each(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const Tensor& query_ends, const Tensor& key_ends,
                                       const MaybeTensor& keys_used, const MaybeTensor& slopes,
                                       const Window& window, double scale, const Draw& drawn) {
  const auto output = at::zeros({query.size(0), query.size(1), value.size(2)}, query.options());
  const auto logsumexp =
      at::full({query.size(1), query.size(0)}, minus_infinity, query.options().dtype(at::kFloat));
  const auto spans = spans_of(query_ends, key_ends, keys_used);
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto& span = spans[i];
    if (span.queries == 0 || span.keys == 0) {
      continue;
    }
    const auto [part_output, part_logsumexp] = attend_windowed(
        part(query, span.query, span.queries), part(key, span.key, span.keys),
        part(value, span.key, span.keys), {}, slopes, window, scale, draw_of(drawn, i));
    output.narrow(0, span.query, span.queries).copy_(part_output[0]);
    logsumexp.narrow(1, span.query, span.queries).copy_(part_logsumexp[0]);
  }
  return {output, logsumexp};
}

ThreeGrads attend_each_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                                const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                                const Tensor& query_ends, const Tensor& key_ends,
                                const Window& window, double scale, const Draw& drawn) {
  const auto grad_query = at::zeros_like(query), grad_key = at::zeros_like(key),
             grad_value = at::zeros_like(value);
  const auto spans = spans_of(query_ends, key_ends, {});
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto& span = spans[i];
    if (span.queries == 0 || span.keys == 0) {
      continue;
    }
    const auto queries = [&](const Tensor& tensor) {
      return part(tensor, span.query, span.queries);
    };
    const auto keys = [&](const Tensor& tensor) { return part(tensor, span.key, span.keys); };
    const auto grads = attend_windowed_backward(
        queries(grad_output), queries(query), keys(key), keys(value), {}, queries(output),
        logsumexp.narrow(1, span.query, span.queries).unsqueeze(0), window, scale,
        draw_of(drawn, i), false);
    queries(grad_query).copy_(std::get<0>(grads));
    keys(grad_key).copy_(std::get<1>(grads));
    keys(grad_value).copy_(std::get<2>(grads));
  }
  return {grad_query, grad_key, grad_value};
}

Tensor by_sequence(const Tensor& logsumexp, const Tensor& query_ends, int64_t most) {
  auto result = at::full({query_ends.size(0) - 1, logsumexp.size(0), in_whole_blocks(most)},
                         std::numeric_limits<double>::infinity(), logsumexp.options());
  const auto spans = spans_of(query_ends, query_ends, {});
  for (size_t i = 0; i < spans.size(); ++i) {
    result[static_cast<int64_t>(i)]
        .narrow(1, 0, spans[i].queries)
        .copy_(logsumexp.narrow(1, spans[i].query, spans[i].queries));
  }
  return result;
}

Tensor end_to_end(const Tensor& by_sequence, const Tensor& query_ends, int64_t total) {
  auto result = at::zeros({by_sequence.size(1), total}, by_sequence.options());
  const auto spans = spans_of(query_ends, query_ends, {});
  for (size_t i = 0; i < spans.size(); ++i) {
    result.narrow(1, spans[i].query, spans[i].queries)
        .copy_(by_sequence[static_cast<int64_t>(i)].narrow(1, 0, spans[i].queries));
  }
  return result;
}

}  // namespace anydevice::kernels
