// Ops that are computed with wider numbers: those of a dtype that CUDA has a kernel for and the
// host has not, and half-precision ones for which the host's kernel is slow. Rounded once at the
// end.
#pragma once

#include "anydevice.h"

namespace anydevice::kernels {

// The types in which the CPU's own kernel takes more than 3 times as long as in float32, measured
// for some 170 ops; with a space at each end of the op's name.
enum class Slow { never, in_half, in_both };
Slow slow_in(const std::string& op);

bool is_slow(Slow slow, const c10::IValue* arguments, size_t count);  // whether a call is one

// Calls the op on wide copies of its narrow arguments; what it wrote to them is carried back.
void call_wide(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace anydevice::kernels
