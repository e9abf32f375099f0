// A CUDA tensor and its alias: the same bytes (or, hollow, the same size) as a tensor that the
// CPU's (Meta's) kernels take. `Aliases` holds those of one call and turns its results into CUDA
// tensors.
//
// Note [Aliases and carry_back]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A virtual GPU has no arithmetic: an op on CUDA tensors is the CPU's kernel on their bytes, which
// are host memory. But a CPU kernel refuses a tensor whose device is CUDA. So, for one call, each
// CUDA argument (the original) gets an alias: a second tensor with the same sizes and strides over
// the same bytes, whose device is the CPU. Nothing is copied.
//
// - Views take their device from the storage, so an alias needs a storage whose device is the CPU.
//   Each block of memory has one, and keeps it: tensors that share a CUDA storage have aliases that
//   share a storage, too, and the kernel sees the same overlaps.
// - A kernel may change more than bytes. resize_() gives the alias other sizes and other bytes,
//   set_() another storage, an `out=` argument new sizes. carry_back() copies such changes to the
//   originals after the kernel. Only ops that write to an argument need it.
// - to_device() turns a result into a CUDA tensor. It may be an alias itself (in-place ops return
//   their argument): then it is the original. It may share an alias's storage (a view): then it
//   becomes a view of the original's storage. Otherwise it is new, and its bytes become the
//   device's: the allocator counts them, and may find that the card would be out of memory.
#pragma once

#include "anydevice.h"

#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

namespace anydevice {

inline Device host() { return machine.hollow ? Device(c10::kMeta) : Device(c10::kCPU); }

// A tensor that outlived its GPUs, and its bytes as a CPU tensor (none, if they were hollow).
bool is_left_behind(const at::Tensor& tensor);
at::Tensor bytes_on_host(const at::Tensor& tensor);

// Before a kernel writes to a tensor: bytes that it shares with lazy clones become its own.
void own_bytes(const at::Tensor& tensor);

class Spares;

class Aliases {
 public:
  Aliases();
  ~Aliases();
  Aliases(const Aliases&) = delete;
  Aliases& operator=(const Aliases&) = delete;

  // The alias of a CUDA tensor; any other tensor is its own, except that hollow kernels see no
  // bytes.
  at::Tensor of(at::Tensor tensor);

  // The alias of a CUDA tensor that outlives this: one of the first few, which do not move.
  at::Tensor& lend(const at::Tensor& tensor);
  static constexpr size_t few = 6;

  // A result of the kernel, as a CUDA tensor: the original of an alias, a view of an original's
  // storage, or a fresh tensor whose bytes become the device's.
  void to_device(at::Tensor& result, DeviceIndex device);

  // Where the i-th tensor of the call is: foreach ops answer for each of their tensors where it is.
  DeviceIndex device_of(size_t i, DeviceIndex otherwise) const;

  // Sizes, strides and storage that the kernel gave to an alias become its original's.
  void carry_back();

 private:
  struct Pair {
    c10::MaybeOwned<at::Tensor> original;
    at::Tensor alias;
    const c10::StorageImpl* storage;  // of the alias, as the kernel got it
  };

  at::Tensor& pair_up(c10::MaybeOwned<at::Tensor> original);
  at::Tensor make(const at::Tensor& original);
  void carry_back(const Pair& pair);
  void carry_back_members(const Pair& pair);
  void move_storage(c10::TensorImpl& result, DeviceIndex device);
  const at::Tensor* original_sharing(const c10::StorageImpl* storage) const;
  const Pair* pair_of(const c10::TensorImpl* alias) const;

  bool is_guest(const at::Tensor& result) const;

  Spares& spares_;  // of this thread
  c10::SmallVector<Pair, few> pairs_;
  std::vector<at::Tensor> guests_;  // host tensors among the arguments: they stay on the host
};

}  // namespace anydevice
