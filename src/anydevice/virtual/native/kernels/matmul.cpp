// Matrix products whose result is wider than their factors, and those of scaled 8-bit floats.
#include "kernel.h"

#include <ATen/native/GroupedMMUtils.h>

namespace anydevice::kernels {
namespace {

// ---- half in, float out ----

Tensor as_factor(const Tensor& factor, ScalarType out_type) {
  const auto type = factor.scalar_type();
  TORCH_CHECK(
      out_type == type || (out_type == at::kFloat && (type == at::kHalf || type == at::kBFloat16)),
      "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  return factor.to(out_type);
}

Tensor mm_to(const Tensor& left, const Tensor& right, ScalarType type) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(), "input dtypes must be the same");
  return at::mm(as_factor(left, type), as_factor(right, type));
}

Tensor bmm_to(const Tensor& left, const Tensor& right, ScalarType type) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(), "input dtypes must be the same");
  return at::bmm(as_factor(left, type), as_factor(right, type));
}

Tensor addmm_to(const Tensor& self, const Tensor& left, const Tensor& right, ScalarType type,
                const Scalar& beta, const Scalar& alpha) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(), "mat1 and mat2 must have the same dtype");
  return at::addmm(self.to(type), as_factor(left, type), as_factor(right, type), beta, alpha);
}

Tensor baddbmm_to(const Tensor& self, const Tensor& left, const Tensor& right, ScalarType type,
                  const Scalar& beta, const Scalar& alpha) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(),
              "batch1 and batch2 must have the same dtype");
  return at::baddbmm(self.to(type), as_factor(left, type), as_factor(right, type), beta, alpha);
}

template <Tensor (*product)(const Tensor&, const Tensor&, ScalarType)>
Tensor& product_out(const Tensor& left, const Tensor& right, ScalarType type, Tensor& out) {
  return write(out, product(left, right, type));
}

template <Tensor (*product)(const Tensor&, const Tensor&, const Tensor&, ScalarType, const Scalar&,
                            const Scalar&)>
Tensor& sum_out(const Tensor& self, const Tensor& left, const Tensor& right, ScalarType type,
                const Scalar& beta, const Scalar& alpha, Tensor& out) {
  return write(out, product(self, left, right, type, beta, alpha));
}

// ---- scaled 8-bit floats: a scale for the tensor, for each row or column, or for each block ----

Tensor spread(const Tensor& scale, const Tensor& over) {
  auto result = scale;
  for (int64_t dim = 0; dim < over.dim(); ++dim) {
    const auto parts = scale.size(dim);
    if (parts != 1 && parts != over.size(dim)) {
      const auto block = (over.size(dim) + parts - 1) / parts;
      result = result.repeat_interleave(block, dim).narrow(dim, 0, over.size(dim));
    }
  }
  return result;
}

Tensor unscaled(const Tensor& matrix, const Tensor& scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(scale.scalar_type() == at::kFloat,
                              "a virtual GPU multiplies 8-bit floats with float32 scales only, not "
                              "with the swizzled ",
                              scale.scalar_type(),
                              " scales of Blackwell's "
                              "block formats");
  const auto wide = matrix.to(at::kFloat);
  return scale.numel() == 1 ? wide * scale.reshape({}) : wide * spread(scale, wide);
}

void check_factors(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.size(1) % 16 == 0,
              "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: (",
              self.size(0), "x", self.size(1), ").");
  TORCH_CHECK(other.size(0) % 16 == 0 && other.size(1) % 16 == 0, "mat2 shape (", other.size(0),
              "x", other.size(1), ") must be divisible by 16");
  TORCH_CHECK_VALUE(
      self.scalar_type() != at::kFloat8_e5m2 || other.scalar_type() != at::kFloat8_e5m2,
      "Multiplication of two Float8_e5m2 matrices is not supported");
}

Tensor product_of_scaled(const Tensor& self, const Tensor& other, const Tensor& self_scale,
                         const Tensor& other_scale, const MaybeTensor& bias,
                         const MaybeTensor& result_scale, std::optional<ScalarType> out_type) {
  auto result = at::mm(unscaled(self, self_scale), unscaled(other, other_scale));
  if (given(bias)) {
    result = result + bias->to(at::kFloat);
  }
  if (given(result_scale)) {
    result = result * *result_scale;
  }
  return result.to(out_type.value_or(self.scalar_type()));
}

Tensor scaled_mm(const Tensor& self, const Tensor& other, const Tensor& self_scale,
                 const Tensor& other_scale, const MaybeTensor& bias,
                 const MaybeTensor& result_scale, std::optional<ScalarType> out_type,
                 bool /*use_fast_accum*/) {
  check_factors(self, other);
  return product_of_scaled(self, other, self_scale, other_scale, bias, result_scale, out_type);
}

Tensor& scaled_mm_out(const Tensor& self, const Tensor& other, const Tensor& self_scale,
                      const Tensor& other_scale, const MaybeTensor& bias,
                      const MaybeTensor& result_scale, std::optional<ScalarType> out_type,
                      bool use_fast_accum, Tensor& out) {
  return write(out, scaled_mm(self, other, self_scale, other_scale, bias, result_scale,
                              out_type.value_or(out.scalar_type()), use_fast_accum));
}

// Scales of the right factor may lie as its rows do or as its columns do.
Tensor along_columns(const Tensor& scale, const Tensor& other) {
  const bool transposed = scale.dim() == 2 && scale.size(0) == other.size(1) && scale.size(0) > 1 &&
                          scale.size(1) != other.size(1);
  return transposed ? scale.t() : scale;
}

Tensor scaled_mm_by_recipe(const Tensor& self, const Tensor& other, TensorList self_scales,
                           IntArrayRef, IntArrayRef, TensorList other_scales, IntArrayRef,
                           IntArrayRef, const MaybeTensor& bias, std::optional<ScalarType> out_type,
                           IntArrayRef, bool /*use_fast_accum*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(self_scales.size() == 1 && other_scales.size() == 1,
                              "a virtual GPU multiplies 8-bit floats with one level of scales");
  return product_of_scaled(self, other, self_scales[0], along_columns(other_scales[0], other), bias,
                           {}, out_type);
}

Tensor& scaled_mm_by_recipe_out(const Tensor& self, const Tensor& other, TensorList self_scales,
                                IntArrayRef self_recipes, IntArrayRef self_swizzles,
                                TensorList other_scales, IntArrayRef other_recipes,
                                IntArrayRef other_swizzles, const MaybeTensor& bias,
                                std::optional<ScalarType> out_type, IntArrayRef dims,
                                bool use_fast_accum, Tensor& out) {
  return write(
      out, scaled_mm_by_recipe(self, other, self_scales, self_recipes, self_swizzles, other_scales,
                               other_recipes, other_swizzles, bias,
                               out_type.value_or(out.scalar_type()), dims, use_fast_accum));
}

// One scale for each row of `self` and each column of `other`, in every group.
Tensor scaled_grouped_mm(const Tensor& self, const Tensor& other, const Tensor& self_scale,
                         const Tensor& other_scale, const MaybeTensor& offsets,
                         const MaybeTensor& bias, const MaybeTensor& result_scale,
                         std::optional<ScalarType> out_type, bool /*use_fast_accum*/) {
  TORCH_CHECK(!given(bias), "Bias not supported yet");
  TORCH_CHECK(!given(result_scale), "Scale result not supported yet");
  const auto type = out_type.value_or(at::kBFloat16);
  TORCH_CHECK(type == at::kBFloat16,
              "Only bf16 high precision output types are supported for grouped gemm");
  const auto out = at::native::create_grouped_gemm_output_tensor(self, other, offsets, type);
  if (self.dim() == 2 && other.dim() == 2) {
    // The groups divide what is summed over, so each group has separate scales.
    const auto groups = offsets->size(0);
    const auto rows = self_scale.view({groups, -1, 1}), columns = other_scale.view({groups, 1, -1});
    const auto products = at::_grouped_mm(self.to(at::kFloat), other.to(at::kFloat), offsets);
    return out.copy_(products * rows * columns);
  }
  const auto left = self.to(at::kFloat) * self_scale.unsqueeze(-1);
  const auto right = other.to(at::kFloat) * other_scale.unsqueeze(-2);
  return out.copy_(at::_grouped_mm(left, right, offsets));
}

Tensor scaled_grouped_mm_by_recipe(const Tensor& self, const Tensor& other, TensorList self_scales,
                                   IntArrayRef self_recipes, IntArrayRef, TensorList other_scales,
                                   IntArrayRef other_recipes, IntArrayRef,
                                   const MaybeTensor& offsets, const MaybeTensor& bias,
                                   std::optional<ScalarType> out_type, IntArrayRef,
                                   bool use_fast_accum) {
  constexpr int64_t row_wise = 1;  // of at::blas::ScalingType
  TORCH_CHECK_NOT_IMPLEMENTED(
      self_recipes == IntArrayRef{row_wise} && other_recipes == IntArrayRef{row_wise},
      "a virtual GPU multiplies groups of 8-bit floats with row-wise scales only");
  return scaled_grouped_mm(self, other, self_scales[0], other_scales[0], offsets, bias, {},
                           out_type, use_fast_accum);
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("mm.dtype", composed<&mm_to>());
  m.impl("mm.dtype_out", composed<&product_out<&mm_to>>());
  m.impl("bmm.dtype", composed<&bmm_to>());
  m.impl("bmm.dtype_out", composed<&product_out<&bmm_to>>());
  m.impl("addmm.dtype", composed<&addmm_to>());
  m.impl("addmm.dtype_out", composed<&sum_out<&addmm_to>>());
  m.impl("baddbmm.dtype", composed<&baddbmm_to>());
  m.impl("baddbmm.dtype_out", composed<&sum_out<&baddbmm_to>>());
  m.impl("_scaled_mm", composed<&scaled_mm>());
  m.impl("_scaled_mm.out", composed<&scaled_mm_out>());
  m.impl("_scaled_mm_v2", composed<&scaled_mm_by_recipe>());
  m.impl("_scaled_mm_v2.out", composed<&scaled_mm_by_recipe_out>());
  m.impl("_scaled_grouped_mm", composed<&scaled_grouped_mm>());
  m.impl("_scaled_grouped_mm_v2", composed<&scaled_grouped_mm_by_recipe>());
}

}  // namespace anydevice::kernels
