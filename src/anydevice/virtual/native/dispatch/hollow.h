// Ops on hollow GPUs: what follows from shapes alone where PyTorch's Meta kernels do not say it,
// and what is refused, with the op and the reason.
//
// Note [Hollow storages]
// ~~~~~~~~~~~~~~~~~~~~~~
// A hollow GPU tracks memory and computes nothing, so that a model of any size runs on a laptop.
// Its tensors are ordinary CUDA tensors whose storage has a size and a device but no bytes:
//
// - The allocator counts the storage in its model of the card, segments and all, and so knows when
//   the card would be out of memory. It returns the address in that model. Programs may compare
//   such addresses (no two storages have the same one), but must never read from them.
// - The alias of such a tensor (see Note [Aliases and carry_back] in alias.h) is a Meta tensor. The
//   common kernel runs the Meta kernel of the op, which computes the shapes of the results. A
//   result becomes a CUDA tensor as on any virtual GPU: its size is counted, and it has no bytes
//   either.
// - What is copied to the host is zeros (but see Note [Known values] in known.h). What a Meta
//   kernel cannot say without values (how many elements are not zero?) is answered below where any
//   answer has the same shape, and refused otherwise, with the line of the program.
#pragma once

#include "signature.h"

#include <ATen/core/stack.h>

namespace anydevice {

// For an op whose kernel wanted values. Answers a question with no, skips a write through a mask
// (which changes no shape) and a check that has no result; refuses all others.
void answer_hollow(const Signature& signature, const c10::FunctionSchema& schema,
                   torch::jit::Stack& stack);

// For some ops of a dense and a sparse tensor, whose dense result has the same shape for all
// indices. False: not one of them, and nothing has been done.
bool answer_by_shapes(const Signature& signature, torch::jit::Stack& stack);

// The Meta kernel in C++ of an op with its overload; one that is not valid for most
// (kernels/meta.cpp).
c10::KernelFunction kernel_for_shapes(const std::string& op);

// Whether a kernel failed because it was given no values.
bool wants_values(const c10::Error& error);

void refuse_hollow_results(const Signature& signature, const torch::jit::Stack& stack);

}  // namespace anydevice
