// Ops on hollow GPUs: what can be told from shapes alone where PyTorch's Meta kernels do not, and
// what is refused, with the op and the reason.
#pragma once

#include "signature.h"

#include <ATen/core/stack.h>

namespace anydevice {

// Leaves an op's result on the stack where it can be told without values: no, to a question; a
// write through a mask, which changes no shape; and no complaint. Throws for others.
void answer_hollow(const Signature& signature, const c10::FunctionSchema& schema,
                   torch::jit::Stack& stack);

// Some ops of a dense and a sparse tensor, whose dense result has the same shape whatever the
// indices are. False: not one of them, and nothing has been done.
bool answer_by_shapes(const Signature& signature, torch::jit::Stack& stack);

// The Meta kernel in C++ of an op with its overload; one that is not valid for most
// (kernels/meta.cpp).
c10::KernelFunction kernel_for_shapes(const std::string& op);

// Whether a kernel failed because it was given no values.
bool wants_values(const c10::Error& error);

void refuse_hollow_results(const Signature& signature, const torch::jit::Stack& stack);

}  // namespace anydevice
