// _flash_attention_* and _efficient_attention_*: what nested tensors and flash-attention code call.
#include "attention.h"

namespace anydevice::kernels {
namespace {

// ---- arguments by name ----

// Versions of PyTorch add arguments to these ops at the end, so they are read from the stack.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : schema_(op.schema()), first_(stack.size() - schema_.arguments().size()), stack_(stack) {}

  const c10::IValue& operator[](const char* name) const {
    const auto index = schema_.argumentIndexWithName(name);
    TORCH_INTERNAL_ASSERT(index, schema_.name(), " has no argument ", name);
    return stack_[first_ + *index];
  }
  Tensor tensor(const char* name) const { return (*this)[name].toTensor(); }
  MaybeTensor maybe(const char* name) const {
    return schema_.argumentIndexWithName(name) ? (*this)[name].toOptional<Tensor>() : MaybeTensor();
  }
  std::optional<SymInt> maybe_size(const char* name) const {
    const auto& value = (*this)[name];
    return value.isNone() ? std::nullopt : std::optional<SymInt>(value.toSymInt());
  }
  void refuse(const char* name) const {
    TORCH_CHECK_NOT_IMPLEMENTED(!given(maybe(name)), schema_.name().substr(6), " with ", name,
                                " is not available on a virtual GPU");
  }

 private:
  const c10::FunctionSchema& schema_;
  size_t first_;
  const torch::jit::Stack& stack_;
};

// ---- flash ----

struct FlashCall {
  MaybeTensor query_ends, key_ends, keys_used, slopes;
  Window window;
  double scale, dropout;
};

std::tuple<Tensor, Tensor> flash_attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                        const FlashCall& call, const Draw& drawn) {
  if (given(call.query_ends)) {
    return on_host(&attend_each, query, key, value, *call.query_ends, *call.key_ends,
                   call.keys_used, call.slopes, call.window, call.scale, drawn);
  }
  return on_host(&attend_windowed, query, key, value, MaybeTensor(), call.slopes, call.window,
                 call.scale, drawn);
}

struct FlashResult {
  Tensor output, logsumexp, rng_state;
};

FlashResult flash_forward(const Arguments& in) {
  in.refuse("block_table");
  const auto query = in.tensor("query");
  refuse_other_than_half(query);
  const FlashCall call{in.maybe("cum_seq_q"),
                       in.maybe("cum_seq_k"),
                       in.maybe("seqused_k"),
                       in.maybe("alibi_slopes"),
                       flash_window(in["is_causal"].toBool(), in.maybe_size("window_size_left"),
                                    in.maybe_size("window_size_right")),
                       scale_of(query, in["scale"].toOptional<double>()),
                       in["dropout_p"].toDouble()};
  const auto sequences = given(call.query_ends) ? call.query_ends->numel() - 1 : query.size(0);
  const auto drawn = draw(call.dropout, sequences * query.size(-2) * 32, query.get_device());
  const auto [output, logsumexp] =
      flash_attend(query, in.tensor("key"), in.tensor("value"), call, drawn);
  return {output, logsumexp, kept_on_device({drawn.seed, drawn.offset}, {2}, at::kUInt64, query)};
}

void flash_forward_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Arguments in(op, *stack);
  const auto query = in.tensor("query");
  const auto result = flash_forward(in);
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, result.output, result.logsumexp, result.rng_state,
                   kept_on_device({}, {}, at::kUInt64, query), at::empty({0}, query.options()));
}

void flash_forward_inplace_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Arguments in(op, *stack);
  const auto result = flash_forward(in);
  in.tensor("out").copy_(result.output);
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, result.logsumexp);
}

ThreeGrads flash_backward_varlen(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                                 const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                                 const Tensor& query_ends, const Tensor& key_ends, SymInt, SymInt,
                                 double dropout, bool causal, const Tensor& rng_state,
                                 const Tensor&, std::optional<double> scale,
                                 std::optional<SymInt> left, std::optional<SymInt> right) {
  warn_of_order(Fused::flash);
  const auto window = flash_window(causal, std::move(left), std::move(right));
  const Draw drawn{dropout, number_in(rng_state, 0), number_in(rng_state, 1)};
  if (query_ends.defined()) {
    return on_host(&attend_each_backward, grad_output, query, key, value, output, logsumexp,
                   query_ends, key_ends, window, scale_of(query, scale), drawn);
  }
  return first_three(on_host(&attend_windowed_backward, grad_output, query, key, value,
                             MaybeTensor(), output, logsumexp, window, scale_of(query, scale),
                             drawn, false));
}

// ---- memory-efficient ----

std::tuple<Tensor, Tensor> efficient_attend(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias,
    const MaybeTensor& query_ends, const MaybeTensor& key_ends, const MaybeTensor& keys_used,
    int64_t most, const Window& window, double scale, const Draw& drawn, bool logsumexp_needed) {
  const auto none = at::empty({0}, query.options().dtype(at::kFloat));
  if (given(query_ends)) {
    TORCH_CHECK(query.size(0) == 1, "cu_seqlens only supports batch_size == 1");
    TORCH_CHECK_NOT_IMPLEMENTED(!given(bias),
                                "_efficient_attention_forward with both a bias and "
                                "cu_seqlens is not available on a virtual GPU");
    const auto [output, logsumexp] = attend_each(query[0], key[0], value[0], *query_ends, *key_ends,
                                                 keys_used, {}, window, scale, drawn);
    return {output.unsqueeze(0),
            logsumexp_needed
                ? by_sequence(logsumexp, *query_ends, most)
                : none.view({0}).expand({query_ends->size(0) - 1, query.size(2), 0}).contiguous()};
  }
  const auto [output, logsumexp] =
      attend_windowed(query, key, value, bias, {}, window, scale, drawn);
  const auto queries = query.size(1);
  return {output.contiguous(),
          logsumexp_needed ? at::constant_pad_nd(logsumexp, {0, in_whole_blocks(queries) - queries},
                                                 std::numeric_limits<double>::infinity())
                           : at::empty({query.size(0), query.size(2), 0}, none.options())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt> efficient_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias,
    const MaybeTensor& query_ends, const MaybeTensor& key_ends, std::optional<SymInt> most_queries,
    std::optional<SymInt> most_keys, double dropout, int64_t custom_mask, bool compute_logsumexp,
    std::optional<double> scale, const MaybeTensor& keys_used, std::optional<int64_t> window) {
  TORCH_CHECK(query.scalar_type() == at::kFloat || at::isReducedFloatingType(query.scalar_type()),
              "Only fp32, half & bf16 supported at the moment");
  const auto queries = most_queries ? most_queries->expect_int() : query.size(1);
  const auto keys = most_keys ? most_keys->expect_int() : key.size(1);
  const auto drawn = draw(dropout, query.size(0) * query.size(2) * query.size(1) * key.size(1),
                          query.get_device());
  const auto [output, logsumexp] = on_host(
      &efficient_attend, query, key, value, bias, query_ends, key_ends, keys_used, queries,
      efficient_window(custom_mask, window), scale_of(query, scale), drawn, compute_logsumexp);
  return {output,  logsumexp, kept_number(drawn.seed, query), kept_number(drawn.offset, query),
          queries, keys};
}

FourGrads efficient_attend_backward(const Tensor& grad_output, const Tensor& query,
                                    const Tensor& key, const Tensor& value, const MaybeTensor& bias,
                                    const Tensor& output, const Tensor& logsumexp,
                                    const MaybeTensor& query_ends, const MaybeTensor& key_ends,
                                    const Window& window, double scale, const Draw& drawn,
                                    bool bias_needed) {
  if (!given(query_ends)) {
    return attend_windowed_backward(grad_output, query, key, value, bias, output, logsumexp, window,
                                    scale, drawn, bias_needed);
  }
  const auto [grad_query, grad_key, grad_value] =
      attend_each_backward(grad_output[0], query[0], key[0], value[0], output[0],
                           end_to_end(logsumexp, *query_ends, query.size(1)), *query_ends,
                           *key_ends, window, scale, drawn);
  return {grad_query.unsqueeze(0), grad_key.unsqueeze(0), grad_value.unsqueeze(0), Tensor()};
}

FourGrads efficient_backward_varlen(const Tensor& grad_output, const Tensor& query,
                                    const Tensor& key, const Tensor& value, const MaybeTensor& bias,
                                    const Tensor& output, const MaybeTensor& query_ends,
                                    const MaybeTensor& key_ends, SymInt, SymInt,
                                    const Tensor& logsumexp, double dropout, const Tensor& seed,
                                    const Tensor& offset, int64_t custom_mask, bool bias_needed,
                                    std::optional<double> scale, std::optional<int64_t>,
                                    std::optional<int64_t> window, bool) {
  if (!grad_output.defined()) {
    return {};
  }
  warn_of_order(Fused::efficient);
  return on_host(&efficient_attend_backward, grad_output, query, key, value, bias, output,
                 logsumexp, query_ends, key_ends, efficient_window(custom_mask, window),
                 scale_of(query, scale), Draw{dropout, number_in(seed), number_in(offset)},
                 bias_needed && given(bias));
}

// ---- cuDNN, dense ----

void cudnn_forward_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Arguments in(op, *stack);
  for (const auto* name : {"cum_seq_q", "cum_seq_k", "seqused_k", "block_table"}) {
    in.refuse(name);
  }
  auto result =
      cudnn(in.tensor("query"), in.tensor("key"), in.tensor("value"), in.maybe("attn_bias"),
            in["compute_log_sumexp"].toBool(), in["dropout_p"].toDouble(), in["is_causal"].toBool(),
            in["return_debug_mask"].toBool(), in["scale"].toOptional<double>());
  torch::jit::drop(*stack, op.schema().arguments().size());
  std::apply([&](auto&&... each) { torch::jit::push(*stack, std::move(each)...); },
             std::move(result));
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  const std::vector<const char*> flash_reads = {
      "query",     "key",       "value", "cum_seq_q",        "cum_seq_k",
      "dropout_p", "is_causal", "scale", "window_size_left", "window_size_right"};
  auto reads_with_out = flash_reads;
  reads_with_out.push_back("out");
  m.impl("_flash_attention_forward", Kernel::boxed<&flash_forward_boxed>(flash_reads, 5));
  m.impl("_flash_attention_forward_no_dropout_inplace",
         Kernel::boxed<&flash_forward_inplace_boxed>(reads_with_out, 1));
  m.impl("_flash_attention_backward", &flash_backward_varlen);
  m.impl("_efficient_attention_forward", &efficient_forward);
  m.impl("_efficient_attention_backward", &efficient_backward_varlen);
  m.impl("_cudnn_attention_forward",
         Kernel::boxed<&cudnn_forward_boxed>(
             {"query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal",
              "return_debug_mask", "scale"},
             9));
  m.impl("_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace anydevice::kernels
