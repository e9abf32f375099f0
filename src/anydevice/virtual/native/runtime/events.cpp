// Transfers, synchronisations and allocations, counted and told to whoever listens; and which ops
// wait for the device, as PyTorch's CUDA kernels do.
#include "dispatch/signature.h"

#include <unordered_map>

namespace anydevice {

std::atomic<void (*)(const Report*)> listener{nullptr};
Totals totals;

std::atomic<void (*)(char*, size_t)> tell_line{nullptr};

std::string user_line() {
  char text[256] = "";
  if (auto* tell = tell_line.load()) {
    const ErrorAside aside;
    tell(text, sizeof(text));
  }
  return text;
}

Synchronises synchronises(const std::string& op) {
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

namespace {

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
