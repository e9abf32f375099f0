// Transfers, synchronisations and allocations, told to whoever listens.
#include "signature.h"

#include <unordered_set>

namespace anydevice {

std::atomic<void (*)(const Report*)> listener{nullptr};

// Ops whose CUDA kernel waits for the device: the size of their result, or their answer, is on it.
bool synchronises(const std::string& op) {
  static const std::unordered_set<std::string> ops = {
      "aten::nonzero",           "aten::masked_select",   "aten::equal",
      "aten::_unique",           "aten::_unique2",        "aten::unique_dim",
      "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount",
      "aten::repeat_interleave", "aten::_coalesce",       "aten::histc",
  };
  return ops.count(op) != 0;
}

}  // namespace anydevice
