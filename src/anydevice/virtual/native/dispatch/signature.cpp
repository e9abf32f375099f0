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

// The schemas of batch normalisation do not say that it writes to the running statistics.
bool is_written(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  const bool running = argument.name() == "running_mean" || argument.name() == "running_var";
  return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
         (running && schema.name().find("backward") == std::string::npos);
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

[[noreturn]] void refuse_two_devices(Device common, Device other) {
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              common, " and ", other, "!");
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
    refuse_two_devices(*common, tensor.device());
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

// Input tensors with their place among them, from 1.
template <typename Visit>
void for_each_given(const Signature& signature, const c10::IValue* arguments, Visit visit) {
  size_t place = 0;
  for (const auto& slot : signature.slots) {
    if (arguments[slot.index].isTensor() && arguments[slot.index].toTensor().defined() &&
        !slot.written) {
      visit(arguments[slot.index].toTensor(), ++place);
    }
  }
}

// torchgen's wrapper leaves these to the kernel.
void check_keyword(const Signature& signature, const std::string& name, const at::Tensor& tensor,
                   Device common) {
  if (!tensor.defined() || tensor.device() == common) {
    return;
  }
  TORCH_CHECK(signature.op != "aten::searchsorted",
              "torch.searchsorted(): sorter and boundary tensors should have same device type, but "
              "got sorter tensor device type ",
              tensor.device(), " and input value tensor device type ", common);
  TORCH_CHECK(false, "Expected data.get_device() == ", name,
              "_value.get_device() to be true, but got false.  (Could this error message be "
              "improved?  If so, please report an enhancement request to PyTorch.)");
}

void check_common(const Signature& signature, const c10::IValue* arguments) {
  std::optional<Device> common;
  for (const auto slot : signature.check_order) {
    const auto& argument = signature.slots[slot];
    for_each_tensor(arguments[argument.index], [&](const at::Tensor& tensor) {
      if (argument.keyword_only && !argument.written && common) {
        return check_keyword(signature, argument.name, tensor, *common);
      }
      c10::impl::check_and_update_common_device(common, tensor, signature.method.c_str(),
                                                argument.name.c_str());
    });
  }
}

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// x[mask] = 0: one mask where x is and one number, which CUDA fills without knowing where.
bool is_masked_fill(const c10::IValue* arguments) {
  const auto& value = arguments[2].toTensor();
  if (!value.is_cpu() || value.numel() != 1 || arguments[3].toBool()) {
    return false;
  }
  int64_t masks = 0, others = 0;
  for_each_tensor(arguments[1], [&](const at::Tensor& index) {
    const bool fits = is_mask(index) && index.device() == arguments[0].toTensor().device();
    (fits ? masks : others) += index.defined();
  });
  return masks == 1 && others == 0;
}

void check_indices(const c10::IValue* arguments) {
  const auto& self = arguments[0].toTensor();
  for_each_tensor(arguments[1], [&](const at::Tensor& index) {
    TORCH_CHECK(!index.defined() || index.is_cpu() || index.device() == self.device(),
                "indices should be either on ", c10::kCPU,
                " or on the same device as the indexed tensor (", self.device(), ")");
  });
}

// Only what accumulates asks for the values' device first: TensorIterator checks everything else.
void check_index_put(const c10::IValue* arguments) {
  const auto& self = arguments[0].toTensor();
  const auto& values = arguments[2].toTensor();
  if (self.device() == values.device() || values.dim() == 0 || is_masked_fill(arguments)) {
    return;
  }
  TORCH_CHECK(
      !self.is_cuda() || !(arguments[3].toBool() || at::globalContext().deterministicAlgorithms()),
      "expected device ", self.device(), " but got device ", values.device(), " for value tensor");
  refuse_two_devices(self.is_cuda() ? self.device() : values.device(),
                     self.is_cuda() ? values.device() : self.device());
}

void check_masked_fill(const c10::IValue* arguments) {
  const auto& self = arguments[0].toTensor();
  const auto& mask = arguments[1].toTensor();
  TORCH_CHECK(self.is_cuda() || !arguments[2].isTensor(),
              "masked_fill_: Expected inputs to be on same device");
  TORCH_CHECK(self.device() == mask.device(),
              "expected self and mask to be on the same device, but got mask on ", mask.device(),
              " and self on ", self.device());
}

// index_fill: self and index; the value after them may be anywhere.
void check_fill_index(const c10::IValue* arguments) {
  const auto& self = arguments[0].toTensor();
  const auto& index = arguments[2].toTensor();
  if (self.device() != index.device()) {
    refuse_two_devices(self.is_cuda() ? self.device() : index.device(),
                       self.is_cuda() ? index.device() : self.device());
  }
}

void check_where(const Signature& signature, const c10::IValue* arguments) {
  std::optional<Device> common;
  for (const auto& slot : signature.slots) {
    const auto& tensor = arguments[slot.index].toTensor();
    if (!common && !tensor.is_cpu()) {
      common = tensor.device();
    }
  }
  for (const auto& slot : signature.slots) {
    const auto& tensor = arguments[slot.index].toTensor();
    if ((tensor.dim() > 0 || slot.written) && tensor.device() != *common) {
      refuse_two_devices(*common, tensor.device());
    }
  }
}

// As check_iterator, but a host scalar is refused, too: with the text of the check that finds it.
void check_without_scalars(const Signature& signature, const c10::IValue* arguments) {
  check_iterator(signature, arguments);
  std::optional<Device> first, cuda;
  for_each_given(signature, arguments, [&](const at::Tensor& tensor, size_t) {
    first = first.value_or(tensor.device());
    cuda = tensor.is_cuda() ? cuda.value_or(tensor.device()) : cuda;
  });
  for_each_given(signature, arguments, [&](const at::Tensor& tensor, size_t place) {
    if (!tensor.is_cpu() || !cuda) {
      return;
    }
    TORCH_CHECK(signature.check != DeviceCheck::gpu_kernel,
                "iter.device(arg).is_cuda() INTERNAL ASSERT FAILED at "
                "\"aten/src/ATen/native/cuda/Loops.cuh\":118, please report a bug to PyTorch. "
                "argument ",
                place, ": expected a CUDA device but found cpu");
    const bool made_on_host = signature.check == DeviceCheck::same_output && first->is_cpu();
    refuse_two_devices(made_on_host ? tensor.device() : *cuda,
                       made_on_host ? *cuda : tensor.device());
  });
}

bool is_one_kernel(const std::vector<at::Tensor>& tensors, const at::Tensor& other) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.device() == tensors[0].device() && tensor.scalar_type() == other.scalar_type();
  });
}

// One kernel for the list wants the factor in its memory; else there is an op for each tensor.
void check_factor(const Signature& signature, const std::vector<at::Tensor>& tensors,
                  const at::Tensor& other) {
  if (other.is_cpu() && !signature.op.starts_with("aten::_foreach_add")) {
    return;  // it is read
  }
  TORCH_CHECK(
      !is_one_kernel(tensors, other) || other.dim() > 0 || other.device() == tensors[0].device(),
      "scalar tensor ", signature.writes ? "is " : "", "expected to be on ", tensors[0].device(),
      " but is on ", other.device());
  for (const auto& tensor : tensors) {
    if (tensor.device() != other.device() && !other.is_cpu()) {
      refuse_two_devices(tensor.device(), other.device());
    }
  }
}

void check_foreach(const Signature& signature, const c10::IValue* arguments) {
  if (signature.op == "aten::_foreach_copy_") {
    return;  // copies go anywhere
  }
  const auto first = arguments[signature.slots.front().index].toTensorVector();
  for (const auto& slot : signature.slots) {
    if (slot.kind == Kind::tensor && slot.name == "other" && !first.empty()) {
      check_factor(signature, first, arguments[slot.index].toTensor());
    }
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

bool waits_for_mask(const c10::IValue* arguments, bool writes) {
  bool masks = false;
  for_each_tensor(arguments[1], [&](const at::Tensor& index) {
    masks |= index.defined() && is_mask(index) && index.is_cuda();
  });
  return masks && !(writes && is_masked_fill(arguments));
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
    slots.push_back({static_cast<uint16_t>(i), *kind, argument.name(), is_written(schema, argument),
                     argument.kwarg_only()});
    writes |= is_written(schema, argument);
    if (*kind != Kind::device && *kind != Kind::generator) {
      (argument.kwarg_only() && is_written(schema, argument) ? outputs : inputs).push_back(slot);
    }
  }
  if (op == "aten::rsub") {
    std::reverse(inputs.begin(), inputs.end());  // it calls sub(other, self)
  }
  check_order = std::move(outputs);
  check_order.insert(check_order.end(), inputs.begin(), inputs.end());
  const auto overload = schema.overload_name().empty() ? "" : "." + schema.overload_name();
  refusals = refusals_of(op + overload);
  for (const auto i : c10::irange(num_returns)) {
    if (const auto kind = kind_of(*schema.returns()[i].type())) {
      results.push_back({static_cast<uint16_t>(i), *kind, "", false, false});
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
    case DeviceCheck::index_put:
      return check_index_put(arguments);
    case DeviceCheck::masked_fill:
      return check_masked_fill(arguments);
    case DeviceCheck::fill_index:
      return check_fill_index(arguments);
    case DeviceCheck::where:
      return check_where(*this, arguments);
    case DeviceCheck::no_scalar:
    case DeviceCheck::same_output:
    case DeviceCheck::gpu_kernel:
      return check_without_scalars(*this, arguments);
    case DeviceCheck::convolution:
      return;  // the kernel that it chooses checks
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
  if ((check != DeviceCheck::indices && check != DeviceCheck::index_put) ||
      !arguments[0].toTensor().is_cuda()) {
    return;
  }
  for (const c10::IValue& index : arguments[1].toListRef()) {
    if (index.isTensor() && index.toTensor().defined() && index.toTensor().is_cpu()) {
      const auto& moved = index.toTensor();
      const auto bytes = is_mask(moved) ? 0 : static_cast<int64_t>(moved.nbytes());
      report({Event::transfer, op.c_str(), bytes, -1, device, moved.is_pinned(), true});
      wait_for(op.c_str(), device);
    }
  }
}

}  // namespace anydevice
