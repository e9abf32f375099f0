// Hollow GPUs only: the shapes that come out of ops for which PyTorch has no Meta kernel.
// Most are those of an argument; where lengths are bytes that nobody has, the longest there can be.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

// Ops that write in place have no shapes to give.
void nothing_to_do(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

// Each result is as large as one of the arguments.
class LikeArguments final : public c10::OperatorKernel {
 public:
  explicit LikeArguments(std::vector<const char*> arguments) : arguments_(std::move(arguments)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto first = stack->size() - schema.arguments().size();
    std::vector<c10::IValue> results;
    for (const auto* argument : arguments_) {
      const auto index = schema.argumentIndexWithName(argument);
      TORCH_INTERNAL_ASSERT(index, schema.name(), " has no argument ", argument);
      results.emplace_back(at::empty_like((*stack)[first + *index].toTensor()));
    }
    torch::jit::drop(*stack, schema.arguments().size());
    stack->insert(stack->end(), results.begin(), results.end());
  }

 private:
  std::vector<const char*> arguments_;
};

Kernel like(std::vector<const char*> arguments) {
  auto kernel = std::make_unique<LikeArguments>(arguments);
  const auto results = static_cast<int>(arguments.size());
  return {aliased(c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel))),
          std::move(arguments), results};
}

std::tuple<Tensor, Tensor> ctc_shapes(const Tensor& log_probs, const Tensor& targets, const Tensor&,
                                      const Tensor&, int64_t, bool) {
  const bool batched = log_probs.dim() == 3;
  const auto batch = batched ? log_probs.size(1) : 1;
  const auto longest = targets.dim() == 2 ? targets.size(1) : targets.size(0);
  return {at::empty({batch}, log_probs.options()),
          at::empty({batch, log_probs.size(0), 2 * longest + 1}, log_probs.options())};
}

std::tuple<Tensor, Tensor> fake_quantize_shapes(const Tensor& self) {
  return {at::empty_like(self), at::empty_like(self, self.options().dtype(at::kBool))};
}

std::tuple<Tensor, Tensor> fake_quantize(const Tensor& self, double, int64_t, int64_t, int64_t) {
  return fake_quantize_shapes(self);
}

std::tuple<Tensor, Tensor> fake_quantize_qparams(const Tensor& self, const Tensor&, const Tensor&,
                                                 const Tensor&, int64_t, int64_t) {
  return fake_quantize_shapes(self);
}

std::tuple<Tensor, Tensor> fake_quantize_channels(const Tensor& self, const Tensor&, const Tensor&,
                                                  int64_t, int64_t, int64_t) {
  return fake_quantize_shapes(self);
}

std::tuple<Tensor, Tensor> extremes(const Tensor& self) {
  return {at::empty({}, self.options()), at::empty({}, self.options())};
}

std::tuple<Tensor, Tensor, Tensor> split_heads(const Tensor& qkv, const Tensor&, int64_t heads) {
  const auto width = qkv.size(2) / 3;
  const auto one = [&] {
    return at::empty({qkv.size(0), heads, qkv.size(1), width / heads}, qkv.options());
  };
  return {one(), one(), one()};
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  if (!machine.hollow) {
    return;
  }
  for (const auto* written_in_place :
       {"_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr", "_fused_sgd_", "_fused_sgd_.tensor_lr",
        "_fused_adagrad_", "_fused_adagrad_.tensor_lr", "_cummax_helper", "_cummin_helper"}) {
    m.impl(written_in_place, Kernel::boxed<&nothing_to_do>({}, 0));
  }
  m.impl("_ctc_loss.Tensor", composed<&ctc_shapes>());
  m.impl("_ctc_loss_backward", like({"log_probs"}));
  m.impl("_ctc_loss_backward.Tensor", like({"log_probs"}));
  m.impl("_logcumsumexp", like({"self"}));
  m.impl("_masked_softmax", like({"self"}));
  m.impl("_masked_softmax_backward", like({"grad_output"}));
  m.impl("_standard_gamma_grad", like({"self"}));
  m.impl("_dirichlet_grad", like({"x"}));
  m.impl("fractional_max_pool3d_backward", like({"self"}));
  m.impl("glu_jvp", like({"glu"}));
  m.impl("_transformer_encoder_layer_fwd", like({"src"}));
  m.impl("glu_backward_jvp", like({"grad_x"}));
  m.impl("_aminmax", composed<&extremes>());
  m.impl("_transform_bias_rescale_qkv", composed<&split_heads>());
  m.impl("fake_quantize_per_tensor_affine_cachemask", composed<&fake_quantize>());
  m.impl("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
         composed<&fake_quantize_qparams>());
  m.impl("fake_quantize_per_channel_affine_cachemask", composed<&fake_quantize_channels>());
  m.impl("_fake_quantize_learnable_per_tensor_affine", like({"self"}));
  m.impl("_fake_quantize_learnable_per_tensor_affine_backward",
         like({"self", "scale", "zero_point"}));
  m.impl("_fake_quantize_learnable_per_channel_affine", like({"self"}));
  m.impl("_fake_quantize_learnable_per_channel_affine_backward",
         like({"self", "scale", "zero_point"}));
}

}  // namespace anydevice::kernels
