// Transfers, synchronisations and allocations: counted, and told to whoever listens.
#include "signature.h"

#include <unordered_set>

namespace anydevice {

std::atomic<void (*)(const Report*)> listener{nullptr};
Totals totals;

std::atomic<void (*)(char*, size_t)> tell_line{nullptr};

std::string user_line() {
  char text[256] = "";
  if (auto* tell = tell_line.load()) {
    tell(text, sizeof(text));
  }
  return text;
}

Synchronises synchronises(const std::string& op) {
  // The size of the result, or an answer, is known only on the device.
  static const std::unordered_set<std::string> always = {
      "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique", "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive",
      "aten::bincount", "aten::repeat_interleave", "aten::_coalesce", "aten::_linalg_check_errors",
  };
  // A mask among the indices is turned into positions first, by nonzero.
  static const std::unordered_set<std::string> with_mask = {
      "aten::index", "aten::index_put_", "aten::_index_put_impl_"};
  return always.count(op) != 0  ? Synchronises::always
      : with_mask.count(op) != 0 ? Synchronises::with_mask
                                 : Synchronises::never;
}

bool Signature::waits(const c10::IValue* arguments) const {
  if (synchronises != Synchronises::with_mask) {
    return synchronises == Synchronises::always;
  }
  const auto indices = arguments[1].toListRef();
  return std::any_of(indices.begin(), indices.end(), [](const c10::IValue& index) {
    return index.isTensor() && index.toTensor().defined() &&
        (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte);
  });
}

}  // namespace anydevice
