// What the common kernel has to know of an op, read from its schema once: which arguments and
// results hold tensors, which it writes to, and how PyTorch checks their devices.
#pragma once

#include "anydevice.h"
#include "refusals.h"

#include <string>

namespace anydevice {

// How CUDA's kernel of an op looks at the devices of its arguments.
enum class DeviceCheck : uint8_t {
  none,
  common,       // torchgen's wrapper_CUDA_…: all the same, host scalars too
  iterator,     // TensorIterator: all the same, one host scalar allowed
  foreach,      // element by element
  indices,      // on the host, or with the tensor they index
  index_put,    // the values with the tensor; the indices are moved to it
  masked_fill,  // the mask with the tensor; the value is read
  fill_index,   // the index with the tensor; the value is read
  where,        // tensors of no dimension are moved
  no_scalar,    // TensorIterator for a kernel that takes no host scalar
  same_output,  // the same, and the result is made where the first tensor is
  gpu_kernel,   // the same, and the kernel itself says so
  convolution,
};

// Whether CUDA's kernel of an op waits for the device, as its host side needs an answer first.
enum class Synchronises : uint8_t { never, always, with_mask, without_size, without_bounds };

enum class Kind : uint8_t { tensor, tensors, optional_tensors, device, generator };

struct Slot {
  uint16_t index;
  Kind kind;
  std::string name;
  bool written;
  bool keyword_only;
};

struct Signature {
  Signature(const c10::FunctionSchema& schema, DeviceCheck check, std::string method);

  std::string op;      // aten::addmm
  std::string method;  // wrapper_CUDA_addmm
  DeviceCheck check;
  bool writes = false;
  Synchronises synchronises = Synchronises::never;
  size_t num_arguments;
  size_t num_returns;
  std::vector<Slot> slots;             // in the order of the arguments
  std::vector<uint16_t> check_order;   // of slots: `out` first, then as they stand
  std::vector<Slot> results;           // those that hold tensors
  const Refusals* refusals = nullptr;  // none for most ops

  bool waits(const c10::IValue* arguments) const;  // for the device, with these arguments
  void move_host_indices(const c10::IValue* arguments, int device) const;  // reported

  // Throws what CUDA would throw if the arguments are on devices that do not go together.
  void check_devices(const c10::IValue* arguments) const;
};

}  // namespace anydevice
