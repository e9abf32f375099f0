// What NCCL's backend accepts and refuses, with its messages, and what its reductions mean for
// gloo.
#include "collectives.h"

namespace anydevice::collectives {
namespace {

using c10::ScalarType;
using c10d::ReduceOp;

bool is_float8(ScalarType type) {
  return type == ScalarType::Float8_e5m2 || type == ScalarType::Float8_e4m3fn ||
         type == ScalarType::Float8_e5m2fnuz || type == ScalarType::Float8_e4m3fnuz ||
         type == ScalarType::Float8_e8m0fnu;
}

bool is_known(ScalarType type) {
  switch (type) {
    case ScalarType::Char:
    case ScalarType::Byte:
    case ScalarType::Float:
    case ScalarType::Double:
    case ScalarType::Int:
    case ScalarType::Long:
    case ScalarType::Half:
    case ScalarType::Bool:
    case ScalarType::BFloat16:
      return true;
    default:
      return is_float8(type);
  }
}

const char* name_of(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::BAND:
      return "BAND";
    case ReduceOp::BOR:
      return "BOR";
    default:
      return "BXOR";
  }
}

ReduceOp::RedOpType summed(const Tensor& tensor) {
  // Bytes of a bool would be 2 after a sum; NCCL takes the larger.
  return tensor.scalar_type() == at::kBool ? ReduceOp::MAX : ReduceOp::SUM;
}

Reduction average(const Tensor& tensor, int ranks) {
  TORCH_CHECK_TYPE(tensor.scalar_type() != at::kBool,
                   "Cannot use ReduceOp.AVG with boolean inputs");
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
    return {ReduceOp::SUM, std::nullopt, {}, ranks};
  }
  return {ReduceOp::SUM, at::Scalar(1.0 / ranks), {}};  // before the sum, which might overflow
}

Reduction scaled(const ReduceOp& op, const Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.is_floating_point() || tensor.is_complex(),
                   "PreMulSum Data type must be half, float, bfloat16 or double");
  const auto* given = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (given->tensor_factor.defined()) {
    Aliases aliases;
    return {ReduceOp::SUM, std::nullopt, aliases.of(given->tensor_factor)};
  }
  return {ReduceOp::SUM, at::Scalar(given->double_factor), {}};
}

}  // namespace

void Reduction::before(Tensor& values) const {
  if (scale) {
    values.mul_(*scale);
  } else if (scale_tensor.defined()) {
    values.mul_(scale_tensor.to(values.scalar_type()));
  }
}

void Reduction::after(Tensor& values) const {
  if (divide != 1) {
    values.div_(divide, "trunc");
  }
}

void check_dense(const Tensor& tensor, bool between_two) {
  TORCH_CHECK_VALUE(tensor.is_cuda() && tensor.layout() == c10::kStrided,
                    "Tensors must be CUDA and dense");
  if (C10_LIKELY(tensor.is_contiguous(tensor.suggest_memory_format()))) {
    return;
  }
  TORCH_CHECK_VALUE(between_two && tensor.is_non_overlapping_and_dense(),
                    "Tensors must be contiguous");
  TORCH_WARN_ONCE(
      "Detected non-contiguous tensor in P2P operations. It is user responsibility to guarantee "
      "that source and destination tensors have the same contiguity format.");
}

void check_dtype(const Tensor& tensor) {
  const auto type = c10::toRealValueType(tensor.scalar_type());
  TORCH_CHECK_TYPE(is_known(type),
                   "Input tensor data type is not supported for NCCL process group: ", type);
}

void check_same_dtype(const Tensors& inputs, const Tensor& output) {
  for (const auto& input : inputs) {
    TORCH_CHECK_TYPE(input.scalar_type() == output.scalar_type(),
                     "input tensor must be the same type as the output tensor.");
  }
}

const Tensor& only_one(const Tensors& tensors) {
  TORCH_CHECK(
      tensors.size() == 1,
      "Expecting one tensor only but got multiple. You are probably using multiple devices under "
      "one thread. The support for such usage has been deprecated. For details, please refer to "
      "https://pytorch.org/docs/stable/distributed.html#multi-gpu-collective-functions. "
      "ProcessGroupNCCL continues supporting multi-process and multi-thread modes.");
  return tensors.front();
}

Reduction nccl_reduction(const ReduceOp& op, const Tensor& tensor, int ranks) {
  TORCH_CHECK(!is_float8(tensor.scalar_type()), "Unsupported Float8 type for NCCL reduction");
  check_dtype(tensor);
  switch (op.op_) {
    case ReduceOp::SUM:
      return {summed(tensor)};
    case ReduceOp::AVG:
      return average(tensor, ranks);
    case ReduceOp::PREMUL_SUM:
      return scaled(op, tensor);
    case ReduceOp::MIN:
    case ReduceOp::MAX:
    case ReduceOp::PRODUCT:
      return {op.op_};
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR:
      TORCH_CHECK_VALUE(false, "Cannot use ReduceOp.", name_of(op.op_), " with NCCL");
    default:
      TORCH_CHECK_VALUE(false, "Unhandled ReduceOp");
  }
}

}  // namespace anydevice::collectives
