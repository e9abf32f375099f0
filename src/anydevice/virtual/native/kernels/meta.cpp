// Hollow GPUs only: the shapes of the ops that training is made of, without Python. PyTorch has put
// Meta kernels in Python before its own in C++, which take a hundredth of their time and are what
// CUDA's follow.
#include "meta.h"

#include "dispatch/hollow.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>

namespace anydevice {
namespace meta {
namespace {

at::TensorOptions statistics_of(const Tensor& input) {
  return input.options().dtype(at::toOpMathType(input.scalar_type()));
}

Tensor relu(const Tensor& self) { return at::meta::clamp_min(self, 0); }

Tensor contiguous_like(const Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options()); }

void check_types(const Tensor& left, const Tensor& right) {
  TORCH_CHECK(left.dtype() == right.dtype(),
              "expected mat1 and mat2 to have the same dtype, but got: ", left.dtype(),
              " != ", right.dtype());
}

Tensor mm(const Tensor& left, const Tensor& right) {
  auto result = at::meta::mm(left, right);
  check_types(left, right);
  return result;
}

Tensor addmm(const Tensor& bias, const Tensor& left, const Tensor& right, const Scalar& beta,
             const Scalar& alpha) {
  auto result = at::meta::addmm(bias, left, right, beta, alpha);
  check_types(left, right);
  bias.expand(result.sizes());  // or throws
  return result;
}

void check_norm(const MaybeTensor& tensor, const char* name, at::IntArrayRef shape) {
  TORCH_CHECK(!tensor || !tensor->defined() || tensor->sizes() == shape, "Expected ", name,
              " to be of same shape as normalized_shape, but got ", name, " of shape ",
              tensor->sizes(), " and normalized_shape = ", shape);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& input, at::IntArrayRef shape,
                                              const MaybeTensor& weight, const MaybeTensor& bias,
                                              double /*eps*/) {
  const auto outer = input.dim() - static_cast<int64_t>(shape.size());
  TORCH_CHECK(!shape.empty(), "Expected normalized_shape to be at least 1-dimensional, i.e., ",
              "containing at least one element, but got normalized_shape = ", shape);
  check_norm(weight, "weight", shape);
  check_norm(bias, "bias", shape);
  TORCH_CHECK(outer >= 0 && input.sizes().slice(outer) == shape, "Given normalized_shape=", shape,
              ", expected input with shape [*, ", c10::Join(", ", shape),
              "], but got input of size", input.sizes());
  auto rows = input.sizes().vec();
  std::fill(rows.begin() + outer, rows.end(), 1);
  return {contiguous_like(input), at::empty(rows, statistics_of(input)),
          at::empty(rows, statistics_of(input))};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor& /*grad_output*/, const Tensor& input, at::IntArrayRef /*shape*/,
    const Tensor& /*mean*/, const Tensor& /*rstd*/, const MaybeTensor& weight,
    const MaybeTensor& bias, std::array<bool, 3> needed) {
  const auto like = [](const MaybeTensor& tensor) {
    return tensor && tensor->defined() ? contiguous_like(*tensor) : Tensor();
  };
  return {needed[0] ? contiguous_like(input) : Tensor(), needed[1] ? like(weight) : Tensor(),
          needed[2] ? like(bias) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(
    const Tensor& /*grad_output*/, const Tensor& input, const MaybeTensor& weight,
    const MaybeTensor& /*running_mean*/, const MaybeTensor& /*running_var*/,
    const MaybeTensor& /*mean*/, const MaybeTensor& /*rstd*/, bool /*train*/, double /*eps*/,
    std::array<bool, 3> needed) {
  const auto given = weight && weight->defined();
  const auto options = given ? weight->options() : statistics_of(input);
  const auto channels = [&] { return at::empty({input.size(1)}, options); };
  return {needed[0] ? at::empty_like(input) : Tensor(), needed[1] ? channels() : Tensor(),
          needed[2] ? channels() : Tensor()};
}

Tensor dropout_backward(const Tensor& grad_output, const Tensor& /*mask*/, double /*scale*/) {
  return at::empty(grad_output.sizes(), grad_output.options(), grad_output.suggest_memory_format());
}

at::MemoryFormat format_of_convolution(const Tensor& input, const Tensor& weight) {
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    if (input.suggest_memory_format() == format || weight.suggest_memory_format() == format) {
      return input.scalar_type() == at::kDouble ? at::MemoryFormat::Contiguous : format;
    }
  }
  return at::MemoryFormat::Contiguous;
}

// cuDNN's results are channels last where its input or its weight is; the Meta kernel's never are,
// or not all of them. Those of a convolution, or its gradients of input and weight, in that format.
template <size_t first_argument, size_t results>
void convolution(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto number = schema.arguments().size();
  const auto argument = [&](size_t place) {
    return torch::jit::peek(*stack, first_argument + place, number).toTensor();
  };
  const auto format = format_of_convolution(argument(0), argument(1));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  if (format == at::MemoryFormat::Contiguous) {
    return;
  }
  for (size_t place = 0; place < results; ++place) {
    auto& result = torch::jit::peek(*stack, place, schema.returns().size());
    if (const auto tensor = result.toTensor(); tensor.defined()) {
      result = at::empty(tensor.sizes(), tensor.options(), format);
    }
  }
}

// Each result is like the tensor at its place in the first list; none where that is written to.
void like_the_first(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto number = schema.arguments().size();
  c10::List<Tensor> results;
  for (const c10::IValue& tensor : torch::jit::peek(*stack, 0, number).toListRef()) {
    const auto& model = tensor.toTensor();
    if (!schema.returns().empty()) {
      results.push_back(at::empty_strided(model.sizes(), model.strides(), model.options()));
    }
  }
  torch::jit::drop(*stack, number);
  if (!schema.returns().empty()) {
    torch::jit::push(*stack, std::move(results));
  }
}

// ---- the table ----

void list_foreach(Table& table) {
  const auto first = c10::KernelFunction::makeFromBoxedFunction<&like_the_first>();
  const auto add = [&](const std::string& name, const char* overload) {
    table.emplace("_foreach_" + name + overload, where(&lists_are_alike, first));
    table.emplace("_foreach_" + name + "_" + overload, where(&lists_are_alike, first));
  };
  for (const auto* overload : {".Scalar", ".List", ".ScalarList"}) {
    for (const auto* name : {"add", "sub", "mul", "div"}) {
      add(name, overload);
    }
  }
  for (const auto* name : {"addcmul", "addcdiv"}) {
    add(name, ".Scalar");
    add(name, ".ScalarList");
  }
  add("lerp", ".Scalar");
  add("lerp", ".List");
  for (const auto* name : {"sqrt", "neg", "reciprocal"}) {
    add(name, "");
  }
  add("maximum", ".List");
}

Table make_table() {
  Table table{
      {"add.Tensor", kernel<static_cast<WithAlpha*>(&at::meta::add)>(&first_is_dense)},
      {"sub.Tensor", kernel<static_cast<WithAlpha*>(&at::meta::sub)>(&first_is_dense)},
      {"mul.Tensor", kernel<&at::meta::mul>(&first_is_dense)},
      {"div.Tensor", kernel<static_cast<OfTwo*>(&at::meta::div)>(&first_is_dense)},
      {"pow.Tensor_Scalar", kernel<static_cast<WithScalar*>(&at::meta::pow)>(&first_is_dense)},
      {"mm", kernel<&mm>()},
      {"bmm", kernel<&at::meta::bmm>(&of_one_type)},
      {"addmm", kernel<&addmm>()},
      {"baddbmm", kernel<&at::meta::baddbmm>(&of_one_type)},
      {"relu", kernel<&relu>(&first_is_dense)},
      {"threshold_backward", kernel<&at::meta::threshold_backward>()},
      {"gelu", kernel<&at::meta::gelu>()},
      {"gelu_backward", kernel<&at::meta::gelu_backward>()},
      {"silu", kernel<&at::meta::silu>()},
      {"silu_backward", kernel<&at::meta::silu_backward>()},
      {"sigmoid", kernel<&at::meta::sigmoid>(&first_is_dense)},
      {"sigmoid_backward", kernel<&at::meta::sigmoid_backward>()},
      {"tanh", kernel<&at::meta::tanh>(&first_is_dense)},
      {"tanh_backward", kernel<&at::meta::tanh_backward>()},
      {"cat", kernel<&at::meta::cat>(&list_is_floating)},
      {"cat.out", kernel<&at::meta::cat_outf>(&list_is_floating)},
      {"rsqrt", kernel<&at::meta::rsqrt>(&first_is_dense)},
      {"sum.dim_IntList", kernel<&at::meta::sum>(&first_is_dense)},
      {"mean.dim", kernel<&at::meta::mean>(&first_is_dense)},
      {"nll_loss_forward", kernel<&at::meta::nll_loss_forward>()},
      {"nll_loss_backward", kernel<&at::meta::nll_loss_backward>()},
      {"convolution", c10::KernelFunction::makeFromBoxedFunction<&convolution<0, 1>>()},
      {"convolution_backward", c10::KernelFunction::makeFromBoxedFunction<&convolution<1, 2>>()},
      {"native_layer_norm", kernel<&layer_norm>()},
      {"native_layer_norm_backward", kernel<&layer_norm_backward>()},
      {"native_batch_norm_backward", kernel<&batch_norm_backward>()},
      {"native_dropout_backward", kernel<&dropout_backward>()},
  };
  list_elements(table);
  list_foreach(table);
  return table;
}

}  // namespace
}  // namespace meta

c10::KernelFunction kernel_for_shapes(const std::string& op) {
  static const auto* table = new meta::Table(meta::make_table());
  const auto found = table->find(op);
  return found == table->end() ? c10::KernelFunction() : found->second;
}

}  // namespace anydevice
