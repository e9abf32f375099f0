// What only CUDA's libraries offer in linear algebra: a driver for the SVD, LU without pivoting;
// and results that lie in rows, where LAPACK's lie in columns.
#include "kernel.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace anydevice::kernels {
namespace {

using TwoTensors = std::tuple<Tensor, Tensor>;
using TwoOutputs = std::tuple<Tensor&, Tensor&>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;
using FourOutputs = std::tuple<Tensor&, Tensor&, Tensor&, Tensor&>;
using ThreeOutputs = std::tuple<Tensor&, Tensor&, Tensor&>;

ThreeOutputs write_three(const ThreeTensors& results, Tensor& first, Tensor& second,
                         Tensor& third) {
  write(first, std::get<0>(results));
  write(second, std::get<1>(results));
  write(third, std::get<2>(results));
  return {first, second, third};
}

// ---- memory layout ----

Tensor in_rows(const Tensor& matrices) {
  return at::empty(matrices.sizes(), matrices.options()).copy_(matrices);
}

// For an output that the op has just given its size.
void put_in_rows(Tensor& matrices) {
  const auto rows = in_rows(matrices);
  matrices.as_strided_(rows.sizes(), rows.strides()).copy_(rows);
}

// ---- the SVD: cuSOLVER computes V, not its conjugate transpose ----

void check_driver(std::optional<c10::string_view> driver) {
  TORCH_CHECK(!driver || *driver == "gesvd" || *driver == "gesvdj" || *driver == "gesvda",
              "torch.linalg.svd: unknown svd driver ", *driver,
              " in svd_cusolver computation. Driver must be one of [gesvd, gesvdj, gesvda].");
}

ThreeTensors svd(const Tensor& a, bool full_matrices, bool compute_uv,
                 std::optional<c10::string_view> driver) {
  check_driver(driver);
  auto [u, s, vh] = at::_linalg_svd(a, full_matrices, compute_uv, std::nullopt);
  return {u, s, in_rows(vh)};
}

ThreeOutputs svd_out(const Tensor& a, bool full_matrices, bool compute_uv,
                     std::optional<c10::string_view> driver, Tensor& u, Tensor& s, Tensor& vh) {
  check_driver(driver);
  const auto fresh = vh.numel() == 0;
  at::_linalg_svd_out(u, s, vh, a, full_matrices, compute_uv, std::nullopt);
  if (fresh) {
    put_in_rows(vh);
  }
  return {u, s, vh};
}

// ---- eigenvectors: computed on the host, and copied to the card ----

TwoTensors eig(const Tensor& a) {
  auto [values, vectors] = at::linalg_eig(a);
  return {values, in_rows(vectors)};
}

TwoOutputs eig_out(const Tensor& a, Tensor& values, Tensor& vectors) {
  const auto fresh = vectors.numel() == 0;
  at::linalg_eig_out(values, vectors, a);
  if (fresh) {
    put_in_rows(vectors);
  }
  return {values, vectors};
}

// ---- least squares ----

FourOutputs lstsq_out(const Tensor& a, const Tensor& b, std::optional<double> rcond,
                      std::optional<c10::string_view> driver, Tensor& solution, Tensor& residuals,
                      Tensor& rank, Tensor& singular_values) {
  std::string name(driver.value_or("gels"));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  TORCH_CHECK(name == "gels",
              "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA");
  return at::linalg_lstsq_out(solution, residuals, rank, singular_values, a, b, rcond, name);
}

// ---- LU ----

Tensor eliminated(const Tensor& a) {
  const auto lu = a.mT().clone(at::MemoryFormat::Contiguous).mT();
  const auto rows = lu.size(-2), columns = lu.size(-1);
  for (int64_t pivot = 0; pivot < std::min(rows, columns) && pivot + 1 < rows; ++pivot) {
    const auto below = lu.narrow(-2, pivot + 1, rows - pivot - 1);
    const auto factors = below.narrow(-1, pivot, 1);
    factors.div_(lu.narrow(-2, pivot, 1).narrow(-1, pivot, 1));
    const auto rest = columns - pivot - 1;
    below.narrow(-1, pivot + 1, rest)
        .sub_(factors * lu.narrow(-2, pivot, 1).narrow(-1, pivot + 1, rest));
  }
  return lu;
}

// 0, or the place (from 1) of the first pivot that is zero.
Tensor first_zero_pivot(const Tensor& lu) {
  const auto zero = lu.diagonal(0, -2, -1) == 0;
  const auto first = zero.to(at::kInt).argmax(-1) + 1;
  return at::where(zero.any(-1), first, at::zeros({}, first.options())).to(at::kInt);
}

ThreeTensors lu_factor(const Tensor& a, bool pivot, bool check_errors) {
  if (pivot || a.numel() == 0) {
    return at::linalg_lu_factor_ex(a, true, check_errors);
  }
  const auto lu = eliminated(a), info = first_zero_pivot(lu);
  if (check_errors) {
    at::_linalg_check_errors(info, "torch.linalg.lu_factor_ex", a.dim() == 2);
  }
  auto shape = a.sizes().vec();
  shape.pop_back();
  shape.back() = std::min(a.size(-2), a.size(-1));
  const auto pivots = at::arange(1, shape.back() + 1, a.options().dtype(at::kInt));
  return {lu, pivots.expand(shape).contiguous(), info};
}

ThreeOutputs lu_factor_out(const Tensor& a, bool pivot, bool check_errors, Tensor& lu,
                           Tensor& pivots, Tensor& info) {
  if (pivot || a.numel() == 0) {
    return at::linalg_lu_factor_ex_out(lu, pivots, info, a, true, check_errors);
  }
  return write_three(lu_factor(a, pivot, check_errors), lu, pivots, info);
}

ThreeTensors lu(const Tensor& a, bool pivot) {
  if (pivot) {
    return at::linalg_lu(a, true);
  }
  const auto size = std::min(a.size(-2), a.size(-1));
  const auto factors = eliminated(a);
  const auto lower = factors.narrow(-1, 0, size).tril(-1);
  lower.diagonal(0, -2, -1).fill_(1);
  return {at::empty({0}, a.options()), lower, factors.narrow(-2, 0, size).triu()};
}

ThreeOutputs lu_out(const Tensor& a, bool pivot, Tensor& p, Tensor& lower, Tensor& upper) {
  if (pivot) {
    return at::linalg_lu_out(p, lower, upper, a, true);
  }
  return write_three(lu(a, pivot), p, lower, upper);
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_linalg_svd", composed<&svd>());
  m.impl("_linalg_svd.U", composed<&svd_out>());
  m.impl("linalg_eig", composed<&eig>());
  m.impl("linalg_eig.out", composed<&eig_out>());
  m.impl("linalg_lstsq.out", composed<&lstsq_out>());
  m.impl("linalg_lu_factor_ex", composed<&lu_factor>());
  m.impl("linalg_lu_factor_ex.out", composed<&lu_factor_out>());
  m.impl("linalg_lu", composed<&lu>());
  m.impl("linalg_lu.out", composed<&lu_out>());
}

}  // namespace anydevice::kernels
