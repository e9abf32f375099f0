// Which kernel scaled_dot_product_attention takes on this card: cuDNN's, flash, memory-efficient or
// plain mathematics, by PyTorch's own rules for types, shapes and compute capability.
#include "machine.h"
#include "on_host.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace anydevice::kernels {
namespace {

using sdp::SDPBackend;
using Params = sdp::sdp_params;

int capability(const Params& params) { return machine.gpu[params.query.get_device()].capability; }

template <typename... Reasons>
bool refuse(bool debug, const Reasons&... reasons) {
  if (debug) {
    TORCH_WARN(reasons...);
  }
  return false;
}

bool is_one_of(const Params& params, std::initializer_list<ScalarType> types, bool debug) {
  return sdp::check_tensor_dtype(params, std::vector<ScalarType>(types), debug);
}

bool half_precision(const Params& params, bool debug) {
  return capability(params) >= 80 ? is_one_of(params, {at::kHalf, at::kBFloat16}, debug)
                                  : is_one_of(params, {at::kHalf}, debug);
}

bool on_cuda(const Params& params, bool debug) {
  return params.query.is_cuda() ||
         refuse(debug, "All tensors need to be on cuda device. Got query on device: ",
                params.query.device(), ", key on device: ", params.key.device(),
                ", value on device: ", params.value.device());
}

bool dense(const Params& params, bool debug) {
  return sdp::has_only_dense_inputs(params) ||
         refuse(debug, "Nested tensors take the math kernel on a virtual GPU.");
}

// ---- flash ----

bool flash_head_dim(const Params& params, bool debug) {
  const auto query = params.query.size(-1), key = params.key.size(-1),
             value = params.value.size(-1);
  return (query == key && query == value && query <= 256) ||
         refuse(debug,
                "Flash attention requires q,k,v to have the same last dimension and to be less "
                "than or equal to 256. Got Query.size(-1): ",
                query, ", Key.size(-1): ", key, ", Value.size(-1): ", value, " instead.");
}

bool flash_hardware(const Params& params, bool debug) {
  const auto sm = capability(params);
  return (sm >= 80 && sm <= 121) ||
         refuse(debug,
                "Flash attention only supports gpu architectures in the range [sm80, sm121]. "
                "Attempting to run on a sm ",
                sm / 10, ".", sm % 10, " gpu.");
}

bool flash_training(const Params& params, bool debug) {
  const auto sm = capability(params);
  const bool small_shared_memory = (sm >= 86 && sm <= 89) || sm == 120 || sm == 121;
  const auto head_dim = params.query.size(-1);
  return !sdp::input_requires_grad(params) || !small_shared_memory || head_dim <= 192 ||
         (params.dropout == 0 && head_dim > 224) ||
         refuse(
             debug,
             "Flash attention currently doesn't support training with head_dim ∈ (192, 224] "
             "or (head_dim ∈ (224, 256] and dropout > 0.0) on gpu architectures in the range[sm86, "
             "sm89].");
}

bool flash_causal(const Params& params, bool debug) {
  const auto queries = params.query.size(-2), keys = params.key.size(-2);
  return !params.is_causal || queries == keys ||
         refuse(debug,
                "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. "
                "Got seqlen_q: ",
                queries, " seqlen_k: ", keys,
                ". If you would like to use causal "
                "attention with non-square masks, please see CausalAttnMask.");
}

bool can_use_flash(const Params& params, bool debug) {
  return sdp::check_runtime_disabled_flash(params, debug) && on_cuda(params, debug) &&
         dense(params, debug) && sdp::check_tensor_shapes(params, debug) &&
         sdp::check_for_attn_mask(params, debug) && flash_head_dim(params, debug) &&
         flash_hardware(params, debug) && flash_training(params, debug) &&
         flash_causal(params, debug) && half_precision(params, debug) &&
         sdp::check_batch_size_and_num_heads_dense<true>(params, debug) &&
         sdp::check_nonzero_sequence_lengths_dense(params, debug) &&
         sdp::check_last_dim_stride_equals_1_dense<true>(params, debug);
}

// ---- memory-efficient ----

// CUTLASS reads in vectors of this many elements.
int64_t gemm_alignment(const Params& params) {
  const auto sm = capability(params);
  const auto bits = 8 * params.query.element_size();
  const bool tensor_cores = sm >= 80 || (sm >= 70 && bits == 16);
  return std::max<int64_t>(sm >= 80 ? 4 : 1, tensor_cores ? 128 / std::min<int64_t>(bits, 32) : 1);
}

bool efficient_head_dim(const Params& params, bool debug) {
  const auto alignment = gemm_alignment(params);
  const auto query = params.query.size(-1), key = params.key.size(-1),
             value = params.value.size(-1);
  return (query == key && query > 0 && query % alignment == 0 && value > 0 &&
          value % alignment == 0) ||
         refuse(debug,
                "Mem efficient attention requires last dimension of inputs to be divisible by ",
                alignment, ". Got Query.size(-1): ", query, ", Key.size(-1): ", key,
                ", Value.size(-1): ", value, " instead.");
}

bool can_use_efficient(const Params& params, bool debug) {
  return sdp::check_runtime_disabled_mem_efficient(params, debug) && on_cuda(params, debug) &&
         dense(params, debug) && sdp::check_tensor_shapes(params, debug) &&
         efficient_head_dim(params, debug) &&
         sdp::check_nonzero_sequence_lengths_dense(params, debug) &&
         sdp::check_last_dim_stride_equals_1_dense<false>(params, debug) &&
         sdp::check_batch_size_and_num_heads_dense<false>(params, debug) &&
         (capability(params) >= 80
              ? is_one_of(params, {at::kHalf, at::kFloat, at::kBFloat16}, debug)
              : is_one_of(params, {at::kHalf, at::kFloat}, debug));
}

// ---- cuDNN ----

bool cudnn_enabled(const Params&, bool debug) {
  return at::globalContext().userEnabledCuDNNSDP() ||
         refuse(debug, "cuDNN attention has been runtime disabled.");
}

bool cudnn_deterministic(const Params&, bool debug) {
  const auto& context = at::globalContext();
  return !context.deterministicAlgorithms() || context.deterministicAlgorithmsWarnOnly() ||
         refuse(debug, "cuDNN SDPA is not deterministic.");
}

bool cudnn_dropout(const Params& params, bool debug) {
  return params.dropout * 16 == std::floor(params.dropout * 16) ||
         refuse(debug,
                "cuDNN dropout probability resolution is limited to 1/16.Use a dropout "
                "probability that is a multiple of 1/16 to select the cuDNN backend");
}

bool cudnn_hardware(const Params& params, bool debug) {
  const auto sm = capability(params);
  return (sm >= 80 && sm <= 121) ||
         refuse(debug,
                "cuDNN MHA only supports gpu architectures in the range [sm80, sm121]. "
                "Attempting to run on a sm ",
                sm / 10, ".", sm % 10, " gpu.");
}

bool cudnn_shapes(const Params& params, bool debug) {
  const auto query_dim = params.query.size(3), value_dim = params.value.size(3);
  const auto sm = capability(params);
  const bool wide = (sm == 90 || sm / 10 == 10) && query_dim == 192 && value_dim == 128;
  const auto most = wide ? 192 : 128;
  if (query_dim > most || value_dim > most) {
    return refuse(debug, "head_dim should be no more than ", most);
  }
  if (query_dim % 8 != 0 || value_dim % 8 != 0) {
    return refuse(debug, "head_dim should be a multiple of 8");
  }
  if (params.key.size(2) == 1) {
    return refuse(debug, "cudnn SDPA does not support key/value sequence length 1.");
  }
  return params.dropout == 0 || params.query.size(2) != 1 ||
         refuse(debug, "cudnn SDPA does not support query sequence length 1 with dropout.");
}

bool can_use_cudnn(const Params& params, bool debug) {
  return cudnn_enabled(params, debug) && dense(params, debug) && on_cuda(params, debug) &&
         sdp::check_tensor_shapes(params, debug) && cudnn_deterministic(params, debug) &&
         half_precision(params, debug) && sdp::check_attn_mask_shape(params, debug) &&
         cudnn_hardware(params, debug) && cudnn_dropout(params, debug) &&
         sdp::check_nonzero_sequence_lengths_dense(params, debug) &&
         sdp::check_last_dim_stride_equals_1_dense<true>(params, debug) &&
         sdp::check_batch_size_and_num_heads_dense<true, false>(params, debug) &&
         cudnn_shapes(params, debug);
}

// ---- the choice ----

// Where a card falls back to plain mathematics, the CPU may still have a fused kernel.
bool cpu_would_fuse(const Params& params) {
  auto without_mask = params;
  without_mask.attn_mask.reset();
  return sdp::check_runtime_disabled_flash(params, false) && dense(params, false) &&
         sdp::check_for_dropout(params, false) && sdp::check_tensor_shapes(params, false) &&
         sdp::check_batch_size_and_num_heads_dense<true>(params, false) &&
         sdp::check_attn_mask_shape(params, false) &&
         params.query.size(-1) == params.key.size(-1) &&
         params.query.size(-1) == params.value.size(-1) &&
         sdp::check_nonzero_sequence_lengths_dense(params, false) &&
         sdp::check_last_dim_stride_equals_1_dense<true>(without_mask, false) &&
         is_one_of(params, {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}, false);
}

// A GPU that computes then gives the CPU's numbers; a hollow one has none, and goes the card's way.
SDPBackend mathematics(const Params& params) {
  const bool fused = !machine.hollow && sdp::check_runtime_disabled_mem_efficient(params, false) &&
                     cpu_would_fuse(params);
  return fused ? SDPBackend::efficient_attention : SDPBackend::math;
}

bool can_use(SDPBackend backend, const Params& params, bool debug = false) {
  switch (backend) {
    case SDPBackend::cudnn_attention:
      return can_use_cudnn(params, debug);
    case SDPBackend::flash_attention:
      return can_use_flash(params, debug);
    case SDPBackend::efficient_attention:
      return can_use_efficient(params, debug);
    default:
      return backend == SDPBackend::math && at::globalContext().userEnabledMathSDP();
  }
}

// Nested tensors, which a card's fused kernels take in any layout, are computed one by one here.
bool can_fuse_nested(const Params& params, bool debug) {
  return sdp::check_tensor_shapes(params, debug) && sdp::check_batch_size_nested(params, debug) &&
         sdp::check_for_seq_len_0_nested_tensor(params, debug) &&
         ((sdp::check_runtime_disabled_flash(params, debug) &&
           sdp::check_for_attn_mask(params, debug) && flash_hardware(params, debug) &&
           half_precision(params, debug)) ||
          (sdp::check_runtime_disabled_mem_efficient(params, debug) &&
           is_one_of(params, {at::kHalf, at::kFloat, at::kBFloat16}, debug)));
}

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
               double dropout, bool causal, std::optional<double>, bool enable_gqa) {
  const Params params{query, key, value, mask, dropout, causal, enable_gqa};
  if (!sdp::has_only_dense_inputs(params) && can_fuse_nested(params, false)) {
    return static_cast<int64_t>(SDPBackend::math);
  }
  for (const auto backend : at::globalContext().sDPPriorityOrder()) {
    if (can_use(backend, params)) {
      return static_cast<int64_t>(backend == SDPBackend::math ? mathematics(params) : backend);
    }
  }
  TORCH_WARN("Memory efficient kernel not used because:");
  can_use_efficient(params, true);
  TORCH_WARN("Flash attention kernel not used because:");
  can_use_flash(params, true);
  TORCH_WARN("cuDNN attention kernel not used because:");
  can_use_cudnn(params, true);
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

// What torch.backends.cuda.can_use_…_attention() asks.
bool can_use_attention(int64_t backend, const Tensor& query, const Tensor& key, const Tensor& value,
                       const MaybeTensor& mask, double dropout, bool causal, bool enable_gqa,
                       bool debug) {
  const Params params{query, key, value, mask, dropout, causal, enable_gqa};
  return can_use(static_cast<SDPBackend>(backend), params, debug);
}

TORCH_LIBRARY_FRAGMENT(anydevice, m) {
  m.def(
      "can_use_attention(int backend, Tensor query, Tensor key, Tensor value, Tensor? mask, "
      "float dropout, bool causal, bool enable_gqa, bool debug) -> bool",
      &can_use_attention);
}

}  // namespace

// Hopper and data-centre Blackwell try cuDNN first. Set with the machine; the user may set another.
void set_attention_order() {
  const auto sm = machine.gpu[0].capability;
  const bool prefer_cudnn = (sm == 90 || sm == 100 || sm == 103) &&
                            c10::utils::check_env("TORCH_CUDNN_SDPA_DEPRIORITIZED") != true;
  std::vector<SDPBackend> order = {SDPBackend::flash_attention, SDPBackend::efficient_attention,
                                   SDPBackend::math};
  order.insert(prefer_cudnn ? order.begin() : order.end(), SDPBackend::cudnn_attention);
  std::vector<int64_t> numbers;
  for (const auto backend : order) {
    numbers.push_back(static_cast<int64_t>(backend));
  }
  at::globalContext().setSDPPriorityOrder(numbers);
}

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_fused_sdp_choice", &choose);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose);
}

}  // namespace anydevice::kernels
