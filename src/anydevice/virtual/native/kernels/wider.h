// For dtypes that CUDA has a kernel for and the host has not.
#pragma once

#include "anydevice.h"

namespace anydevice::kernels {

// Calls the op on wide copies of its narrow arguments; what it wrote to them is carried back.
void call_wide(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace anydevice::kernels
