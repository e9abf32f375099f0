// Reading schemas, PyTorch's own device errors, and which ops wait for the device, as CUDA's
// kernels do.
#include "signature.h"

#include <ATen/core/op_registration/adaption.h>

#include <unordered_map>

namespace anydevice {
namespace {

using c10::TypeKind;

const c10::Type& without_optional(const c10::Type& type) {
  return type.kind() == TypeKind::OptionalType
             ? *type.castRaw<c10::OptionalType>()->getElementType()
             : type;
}

std::optional<Kind> kind_of(const c10::Type& declared) {
  const auto& type = without_optional(declared);
  switch (type.kind()) {
    case TypeKind::TensorType:
      return Kind::tensor;
    case TypeKind::DeviceObjType:
      return Kind::device;
    case TypeKind::GeneratorType:
      return Kind::generator;
    case TypeKind::ListType: {
      const auto& element = *type.castRaw<c10::ListType>()->getElementType();
      if (without_optional(element).kind() != TypeKind::TensorType) {
        return std::nullopt;
      }
      return element.kind() == TypeKind::OptionalType ? Kind::optional_tensors : Kind::tensors;
    }
    default:
      return std::nullopt;
  }
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit(element.toTensor());
      }
    }
  }
}

void check_iterator(const Signature& signature, const c10::IValue* arguments) {
  std::optional<Device> common;
  bool scalar_seen = false;
  auto device_of_first = [&](const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_cpu() && !common) {
      common = tensor.device();
    }
  };
  auto check = [&](const at::Tensor& tensor, bool written) {
    if (!tensor.defined() || tensor.device() == *common) {
      return;
    }
    if (tensor.is_cpu() && tensor.dim() == 0 && !written) {
      TORCH_CHECK(!scalar_seen, "Trying to pass too many CPU scalars to CUDA kernel!");
      scalar_seen = true;
      return;
    }
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *common, " and ", tensor.device(), "!");
  };
  for (const auto slot : signature.check_order) {
    for_each_tensor(arguments[signature.slots[slot].index], device_of_first);
  }
  if (!common) {
    return;
  }
  for (const auto i : signature.check_order) {
    const auto& slot = signature.slots[i];
    for_each_tensor(arguments[slot.index],
                    [&](const at::Tensor& tensor) { check(tensor, slot.written); });
  }
}

void check_common(const Signature& signature, const c10::IValue* arguments) {
  std::optional<Device> common;
  for (const auto slot : signature.check_order) {
    const auto& argument = signature.slots[slot];
    for_each_tensor(arguments[argument.index], [&](const at::Tensor& tensor) {
      c10::impl::check_and_update_common_device(common, tensor, signature.method.c_str(),
                                                argument.name.c_str());
    });
  }
}

void check_convolution(const c10::IValue* arguments) {
  const auto& input = arguments[0].toTensor();
  const auto& weight = arguments[1].toTensor();
  TORCH_CHECK(input.options().type_equal(weight.options()) && input.device() == weight.device(),
              "Input type (", input.toString(), ") and weight type (", weight.toString(),
              ") should be the same");
  if (arguments[2].isTensor()) {
    const auto& bias = arguments[2].toTensor();
    TORCH_CHECK(!bias.defined() || input.options().type_equal(bias.options()), "Input type (",
                input.toString(), ") and bias type (", bias.toString(), ") should be the same");
  }
}

void check_indices(const c10::IValue* arguments) {
  const auto& self = arguments[0].toTensor();
  for_each_tensor(arguments[1], [&](const at::Tensor& index) {
    TORCH_CHECK(!index.defined() || index.is_cpu() || index.device() == self.device(),
                "indices should be either on ", c10::kCPU,
                " or on the same device as the indexed tensor (", self.device(), ")");
  });
}

void check_masked_fill(const Signature& signature, const c10::IValue* arguments) {
  TORCH_CHECK(arguments[0].toTensor().is_cuda(),
              "masked_fill_: Expected inputs to be on same device");
  check_iterator(signature, arguments);
}

void check_foreach(const Signature& signature, const c10::IValue* arguments) {
  const auto first = arguments[signature.slots.front().index].toTensorVector();
  for (const auto& slot : signature.slots) {
    if (slot.kind != Kind::tensors) {
      continue;
    }
    size_t i = 0;
    for (const at::Tensor& tensor : arguments[slot.index].toTensorList()) {
      if (i < first.size() && tensor.device() != first[i].device()) {
        TORCH_CHECK(
            tensor.is_cpu() && tensor.dim() == 0,
            "Expected all tensors to be on the same device, but found at least two devices, ",
            first[i].device(), " and ", tensor.device(), "!");
      }
      ++i;
    }
  }
}

// ---- waiting for the device

Synchronises kind_of_wait(const std::string& op) {
  using enum Synchronises;
  static const std::unordered_map<std::string, Synchronises> known = {
      // The size of the result, or an answer, is known only on the device.
      {"aten::nonzero", always},
      {"aten::masked_select", always},
      {"aten::equal", always},
      {"aten::_unique", always},
      {"aten::_unique2", always},
      {"aten::unique_dim", always},
      {"aten::unique_consecutive", always},
      {"aten::unique_dim_consecutive", always},
      {"aten::bincount", always},
      {"aten::_coalesce", always},
      {"aten::_linalg_check_errors", always},
      {"aten::repeat_interleave", without_size},
      {"aten::histc", without_bounds},
      // A mask among the indices is turned into positions first, by nonzero.
      {"aten::index", with_mask},
      {"aten::index_put_", with_mask},
      {"aten::_index_put_impl_", with_mask},
  };
  const auto found = known.find(op);
  return found == known.end() ? never : found->second;
}

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// x[mask] = 0: one mask and one number, which CUDA fills without knowing where.
bool is_masked_fill(const c10::IValue* arguments, int64_t tensors) {
  if (tensors != 1 || !arguments[2].isTensor()) {
    return false;
  }
  const auto& value = arguments[2].toTensor();
  return value.is_cpu() && value.numel() == 1 && !arguments[3].toBool();
}

bool waits_for_mask(const c10::IValue* arguments, bool writes) {
  int64_t tensors = 0, masks = 0;
  for (const c10::IValue& index : arguments[1].toListRef()) {
    if (index.isTensor() && index.toTensor().defined()) {
      tensors += 1;
      masks += is_mask(index.toTensor()) && index.toTensor().is_cuda();
    }
  }
  return masks > 0 && !(writes && is_masked_fill(arguments, tensors));
}

}  // namespace

Signature::Signature(const c10::FunctionSchema& schema, DeviceCheck device_check,
                     std::string method_name)
    : op(schema.name()),
      method(std::move(method_name)),
      check(device_check),
      synchronises(kind_of_wait(schema.name())),
      num_arguments(schema.arguments().size()),
      num_returns(schema.returns().size()) {
  std::vector<uint16_t> outputs, inputs;
  for (const auto i : c10::irange(num_arguments)) {
    const auto& argument = schema.arguments()[i];
    const auto kind = kind_of(*argument.type());
    if (!kind) {
      continue;
    }
    const auto slot = static_cast<uint16_t>(slots.size());
    slots.push_back({static_cast<uint16_t>(i), *kind, argument.name(), is_written(argument)});
    writes |= is_written(argument);
    if (*kind != Kind::device && *kind != Kind::generator) {
      (argument.kwarg_only() && is_written(argument) ? outputs : inputs).push_back(slot);
    }
  }
  check_order = std::move(outputs);
  check_order.insert(check_order.end(), inputs.begin(), inputs.end());
  for (const auto i : c10::irange(num_returns)) {
    if (const auto kind = kind_of(*schema.returns()[i].type())) {
      results.push_back({static_cast<uint16_t>(i), *kind, "", false});
    }
  }
}

void Signature::check_devices(const c10::IValue* arguments) const {
  switch (check) {
    case DeviceCheck::none:
      return;
    case DeviceCheck::common:
      return check_common(*this, arguments);
    case DeviceCheck::iterator:
      return check_iterator(*this, arguments);
    case DeviceCheck::foreach:
      return check_foreach(*this, arguments);
    case DeviceCheck::indices:
      return check_indices(arguments);
    case DeviceCheck::masked_fill:
      return check_masked_fill(*this, arguments);
    case DeviceCheck::convolution:
      return check_convolution(arguments);
  }
}

bool Signature::waits(const c10::IValue* arguments) const {
  switch (synchronises) {
    case Synchronises::never:
      return false;
    case Synchronises::always:
      return true;
    case Synchronises::with_mask:
      return waits_for_mask(arguments, writes && op != "aten::index");
    case Synchronises::without_size:
      return arguments[1].isNone();
    case Synchronises::without_bounds:
      return arguments[2].toScalar().toDouble() == arguments[3].toScalar().toDouble();
  }
  return false;
}

void Signature::move_host_indices(const c10::IValue* arguments, int device) const {
  if (check != DeviceCheck::indices) {
    return;
  }
  for (const c10::IValue& index : arguments[1].toListRef()) {
    if (index.isTensor() && index.toTensor().defined() && index.toTensor().is_cpu()) {
      const auto& moved = index.toTensor();
      const auto bytes = is_mask(moved) ? 0 : static_cast<int64_t>(moved.nbytes());
      report({Event::transfer, op.c_str(), bytes, -1, device, moved.is_pinned(), true});
      wait_for(op.c_str(), device, Wait::audibly);
    }
  }
}

}  // namespace anydevice
