// torch.kaiser_window(), whose kernel PyTorch calls by a stub that lives in its CUDA library.
#include "kernel.h"

#include <ATen/native/TensorFactories.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/UnaryOps.h>

namespace anydevice::kernels {
namespace {

void kaiser_window(at::TensorIteratorBase& iterator, int64_t length, double beta) {
  const auto place = iterator.tensor(1) * (2.0 / static_cast<double>(length - 1)) - 1;
  const auto window = at::i0((1 - place * place).sqrt() * beta);
  iterator.tensor(0).copy_(window / at::i0(at::scalar_tensor(beta, window.options())));
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  static_cast<void>(m);  // a stub, not an op: only the moment is the same
  at::native::kaiser_window_stub.set_cuda_dispatch_ptr(&kaiser_window);
}

}  // namespace anydevice::kernels
