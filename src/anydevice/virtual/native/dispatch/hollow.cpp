#include "hollow.h"

#include <ATen/SparseCsrTensorUtils.h>

#include <algorithm>

namespace anydevice {
namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr auto elsewhere = "run this on a virtual GPU that is not hollow.";

bool is_sparse(const IValue& value) {
  return value.isTensor() &&
         (value.toTensor().is_sparse() || at::sparse_csr::is_sparse_compressed(value.toTensor()));
}

bool is_nested(const IValue& value) { return value.isTensor() && value.toTensor().is_nested(); }

bool is_dense(const IValue& value) {
  return value.isTensor() && !is_sparse(value) && !is_nested(value);
}

[[noreturn]] void refuse_nested(const Signature& signature) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "a hollow GPU has no nested tensors in the strided layout, and ", signature.op,
      " works with one", user_line(), ": use layout=torch.jagged, or ", elsewhere);
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  return at::empty({left.size(0), right.size(1)}, right.options());
}

// Of an op with these arguments; nothing if it depends on values.
std::optional<at::Tensor> result_of(const Signature& signature, const IValue* arguments) {
  const auto& op = signature.op;
  const bool sums = op == "aten::add" || op == "aten::sub";
  const bool sums_in_place = op == "aten::add_" || op == "aten::sub_";
  if ((sums || sums_in_place) && is_dense(arguments[0]) && is_sparse(arguments[1])) {
    if (signature.writes) {
      return arguments[sums_in_place ? 0 : signature.num_arguments - 1].toTensor();
    }
    return at::empty_like(arguments[0].toTensor());
  }
  if (signature.writes) {
    return std::nullopt;
  }
  if (op == "aten::_to_dense" && is_sparse(arguments[0])) {
    const auto& self = arguments[0].toTensor();
    const auto dtype = arguments[1].to<std::optional<at::ScalarType>>();
    return at::empty(
        self.sizes(),
        self.options().layout(c10::kStrided).dtype(dtype.value_or(self.scalar_type())));
  }
  if (op == "aten::mm" && is_sparse(arguments[0]) && is_dense(arguments[1])) {
    return product(arguments[0].toTensor(), arguments[1].toTensor());
  }
  if (op == "aten::addmm" && is_sparse(arguments[1]) && is_dense(arguments[2])) {
    return product(arguments[1].toTensor(), arguments[2].toTensor());
  }
  return std::nullopt;
}

}  // namespace

void answer_hollow(const Signature& signature, const c10::FunctionSchema& schema, Stack& stack) {
  const bool question =
      signature.num_returns == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::BoolType;
  const bool masked_write = signature.writes && signature.synchronises == Synchronises::with_mask;
  if (!question && !masked_write && signature.num_returns > 0) {
    const auto arguments = torch::jit::last(stack, signature.num_arguments);
    if (std::any_of(arguments.begin(), arguments.end(), is_nested)) {
      refuse_nested(signature);
    }
    const bool sparse = std::any_of(arguments.begin(), arguments.end(), is_sparse);
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "a hollow GPU has shapes but no values, and ", signature.op, " needs them",
        sparse ? ", since the indices of a sparse tensor are values, too," : "", user_line(),
        ": expected an op whose result has a size that is known without values; ", elsewhere);
  }
  torch::jit::drop(stack, signature.num_arguments - (masked_write ? 1 : 0));
  if (question) {
    torch::jit::push(stack, false);
  }
}

bool answer_by_shapes(const Signature& signature, Stack& stack) {
  const auto arguments = torch::jit::last(stack, signature.num_arguments);
  if (std::none_of(arguments.begin(), arguments.end(), is_sparse)) {
    return false;
  }
  auto result = result_of(signature, arguments.data());
  if (result) {
    torch::jit::drop(stack, signature.num_arguments);
    torch::jit::push(stack, *std::move(result));
  }
  return result.has_value();
}

bool wants_values(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) {
    return !says("nput dtype must be");  // which is known without values
  }
  return says("unsupported device type") || says("data is not allocated yet") ||
         says("INTERNAL ASSERT FAILED") || says("NestedTensorImpl doesn't support");
}

void refuse_hollow_results(const Signature& signature, const Stack& stack) {
  const auto results = torch::jit::last(stack, signature.num_returns);
  if (std::any_of(results.begin(), results.end(), is_nested)) {
    refuse_nested(signature);
  }
}

}  // namespace anydevice
