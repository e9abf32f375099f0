// What CUDA can do with compressed sparse matrices and the CPU cannot: batches and solving.
// They are made dense for it, since only the result is asked for.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

Tensor bmm_csr(const Tensor& self, const Tensor& other) { return at::bmm(self.to_dense(), other); }

Tensor& bmm_csr_out(const Tensor& self, const Tensor& other, Tensor& out) {
  return write(out, bmm_csr(self, other));
}

Tensor baddbmm_csr(const Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
                   const Scalar& alpha) {
  return at::baddbmm(self, left.to_dense(), right, beta, alpha);
}

Tensor& baddbmm_csr_(Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
                     const Scalar& alpha) {
  return self.copy_(baddbmm_csr(self, left, right, beta, alpha));
}

Tensor& baddbmm_csr_out(const Tensor& self, const Tensor& left, const Tensor& right,
                        const Scalar& beta, const Scalar& alpha, Tensor& out) {
  return write(out, baddbmm_csr(self, left, right, beta, alpha));
}

Tensor solve(const Tensor& a, const Tensor& b, bool left) {
  return at::linalg_solve(a.to_dense(), b, left);
}

}  // namespace

ANYDEVICE_IMPL(aten, SparseCsrCUDA, m) {
  m.impl("bmm", composed<&bmm_csr>());
  m.impl("bmm.out", composed<&bmm_csr_out>());
  m.impl("baddbmm", composed<&baddbmm_csr>());
  m.impl("baddbmm_", composed<&baddbmm_csr_>());
  m.impl("baddbmm.out", composed<&baddbmm_csr_out>());
  m.impl("_spsolve", composed<&solve>());
}

}  // namespace anydevice::kernels
