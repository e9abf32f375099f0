// Note [Known values]
//
// A hollow GPU's tensors have no bytes, and zeros are read from them. Yet programs, and PyTorch
// itself, put whole numbers on a GPU only to pass them on and read them back:
// DistributedDataParallel sends the indices and sizes of its buckets through a broadcast and walks
// along what comes back, and zeros there crash it; all_gather_object sends lengths. So a small
// block of whole numbers keeps those that the host wrote (a copy from the host, a fill) or that
// came from another such block (a copy, a collective). Any other write to the block makes its
// values unknown again; unknown ones among known are zeros.
//
// A collective exchanges nothing: each rank is taken to say what this one says.
#pragma once

#include "anydevice.h"

namespace anydevice::known {

// The values, as a CPU tensor of the same sizes; none if they are not known.
std::optional<at::Tensor> values(const at::Tensor& tensor);

// From now on the tensor's values are these, which broadcast to it, or not known.
void write(const at::Tensor& tensor, const std::optional<at::Tensor>& values);

inline void forget(const at::Tensor& tensor) { write(tensor, std::nullopt); }

}  // namespace anydevice::known
