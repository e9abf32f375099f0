// What CUDA can do with sparse tensors and the CPU cannot: sums in half precision; batches of
// compressed matrices and solving, for which they are made dense, since only the result is asked
// for.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

// Where the first is dense, the CPU has a kernel for halves, too.
ScalarType type_of_sum(const Tensor& self, const Tensor& other) {
  const auto type = at::result_type(self, other);
  return self.is_sparse() && other.is_sparse() ? at::toOpMathType(type) : type;
}

Tensor sparse_sum(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  const auto type = at::result_type(self, other), wide = type_of_sum(self, other);
  return wide == type ? at::add(self, other, alpha)
                      : at::add(self.to(wide), other.to(wide), alpha).to(type);
}

Tensor& add_(Tensor& self, const Tensor& other, const Scalar& alpha) {
  const bool known = type_of_sum(self, other) == at::result_type(self, other);
  return known ? self.add_(other, alpha) : self.copy_(sparse_sum(self, other, alpha));
}

Tensor& add_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  const bool known = type_of_sum(self, other) == at::result_type(self, other);
  return known ? at::add_out(out, self, other, alpha) : out.copy_(sparse_sum(self, other, alpha));
}

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

ANYDEVICE_IMPL(aten, SparseCUDA, m) {
  if (!machine.hollow) {
    m.impl("add.Tensor", composed<&sparse_sum>());
    m.impl("add_.Tensor", composed<&add_>());
    m.impl("add.out", composed<&add_out>());
  }
}

ANYDEVICE_IMPL(aten, SparseCsrCUDA, m) {
  m.impl("bmm", composed<&bmm_csr>());
  m.impl("bmm.out", composed<&bmm_csr_out>());
  m.impl("baddbmm", composed<&baddbmm_csr>());
  m.impl("baddbmm_", composed<&baddbmm_csr_>());
  m.impl("baddbmm.out", composed<&baddbmm_csr_out>());
  m.impl("_spsolve", composed<&solve>());
}

}  // namespace anydevice::kernels
