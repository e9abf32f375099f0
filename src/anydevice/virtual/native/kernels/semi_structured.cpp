// 2:4 sparsity: of every four values two are kept, with metadata that says which, in CUTLASS's
// layout; cuSPARSELt's compressed matrix holds the same values with the metadata behind them.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

struct Compressed {
  Tensor values, metadata;
};

// Four bits of metadata describe four values; float32 is two values seen as four halves.
struct Encoding {
  ScalarType type;
  int64_t group;   // values that four bits describe
  int64_t groups;  // in one number of metadata
};

Encoding encoding_of(const Tensor& values) {
  switch (values.scalar_type()) {
    case at::kChar:
      return {at::kInt, 4, 8};
    case at::kHalf:
    case at::kBFloat16:
      return {at::kShort, 4, 4};
    case at::kFloat:
      return {at::kShort, 2, 4};
    default:
      TORCH_CHECK(false, "Invalid datatype ", values.scalar_type(), " of dense matrix");
  }
}

// Where CUTLASS keeps each number of metadata: rows interwoven, 2x2 blocks swizzled, two columns
// side by side.
Tensor places_of(int64_t rows, int64_t columns, const Encoding& encoding, const Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  const int64_t group = encoding.type == at::kShort ? 32 : 16, weave = group / 8;
  const auto row = at::arange(rows, options).unsqueeze(1), column = at::arange(columns, options);
  auto to_row = row.floor_divide(group) * group + row.remainder(8) * weave +
                row.remainder(group).floor_divide(8);
  const auto odd_row = to_row.remainder(2), odd_column = column.remainder(2);
  const auto swap = (1 - odd_row) * odd_column - odd_row * (1 - odd_column);
  to_row = to_row + swap;
  const auto to_column = column - swap;
  return (to_column.floor_divide(2) * rows * 2 + to_row * 2 + to_column.remainder(2)).view(-1);
}

Compressed compress(const Tensor& dense) {
  TORCH_CHECK(dense.dim() == 2, "Expected 2-dimensional dense tensor, got ", dense.dim(),
              "-dimensional tensor");
  const auto encoding = encoding_of(dense);
  const auto rows = dense.size(0), columns = dense.size(1);
  const int64_t row_multiple = encoding.type == at::kInt ? 16 : 32;
  const int64_t column_multiple = 4 * encoding.groups;
  TORCH_CHECK(rows % row_multiple == 0, "Number of rows of dense matrix ", rows,
              " must be divisible by ", row_multiple);
  TORCH_CHECK(columns % column_multiple == 0, "Number of columns of dense matrix ", columns,
              " must be divisible by ", column_multiple);
  const auto quads = dense.contiguous().view({rows, -1, encoding.group});
  const auto kept = quads != 0;
  const bool pairs = encoding.group == 2;
  const auto at_place = [&](int64_t place) { return kept.select(-1, pairs ? place / 2 : place); };
  const auto k0 = at_place(0), k1 = at_place(1), k3 = at_place(3);
  const auto first_only = k0 & k1, second = ~k0 & k1, neither = ~k0 & ~k1;
  const auto low = second.to(at::kLong) + neither.to(at::kLong) * 2;
  const auto high = (first_only | neither | k3).to(at::kLong) + (second | ~k1).to(at::kLong) * 2;
  const auto values = pairs ? quads.gather(-1, low.unsqueeze(-1).floor_divide(2))
                            : quads.gather(-1, at::stack({low, high}, -1));
  const auto numbers = columns / (encoding.group * encoding.groups);
  const auto shift = at::arange(encoding.groups, low.options()) * 4;
  const auto metadata =
      at::bitwise_left_shift((low + high * 4).view({rows, numbers, encoding.groups}), shift)
          .sum(-1)
          .to(encoding.type);
  const auto reordered =
      at::empty({rows * numbers}, metadata.options())
          .scatter(0, places_of(rows, numbers, encoding, dense), metadata.view(-1));
  return {values.reshape({rows, columns / 2}), reordered.view({rows, numbers})};
}

Tensor decompress(const Tensor& values, const Tensor& metadata) {
  const auto encoding = encoding_of(values);
  const auto rows = values.size(0), columns = 2 * values.size(1), numbers = metadata.size(1);
  const auto in_order =
      metadata.reshape(-1).gather(0, places_of(rows, numbers, encoding, values)).to(at::kLong);
  const auto shift = at::arange(2 * encoding.groups, in_order.options()) * 2;
  const auto places = at::bitwise_right_shift(in_order.unsqueeze(-1), shift).bitwise_and(3);
  const auto pair = places.view({rows, -1, 2});
  if (encoding.group == 2) {
    const auto dense = at::zeros({rows, columns / 2, 2}, values.options());
    return dense.scatter(2, pair.select(-1, 0).floor_divide(2).unsqueeze(-1), values.unsqueeze(-1))
        .view({rows, columns});
  }
  const auto dense = at::zeros({rows, columns / 4, 4}, values.options());
  return dense.scatter(2, pair, values.reshape({rows, -1, 2})).view({rows, columns});
}

Tensor product(const Tensor& left, const Tensor& right, std::optional<ScalarType> out_type) {
  const auto wide = left.scalar_type() == at::kChar ? at::kInt : at::kFloat;
  return at::mm(left.to(wide), right.to(wide)).to(out_type.value_or(left.scalar_type()));
}

std::tuple<Tensor, Tensor> to_semi_structured(const Tensor& dense) {
  const auto [values, metadata] = compress(dense);
  return {values, metadata};
}

Tensor semi_structured_mm(const Tensor& values, const Tensor& metadata, const Tensor& right,
                          std::optional<ScalarType> out_type) {
  return product(decompress(values, metadata), right, out_type);
}

Tensor semi_structured_addmm(const Tensor& input, const Tensor& values, const Tensor& metadata,
                             const Tensor& right, const Scalar& alpha, const Scalar& beta,
                             std::optional<ScalarType> out_type) {
  const auto wide = right.scalar_type() == at::kChar ? at::kInt : at::kFloat;
  const auto result = product(decompress(values, metadata), right, wide) * alpha +
                      input.to(wide).unsqueeze(-1) * beta;
  return result.to(out_type.value_or(right.scalar_type()));
}

Tensor semi_structured_linear(const Tensor& input, const Tensor& values, const Tensor& metadata,
                              const MaybeTensor& bias,
                              const std::optional<c10::string_view> activation,
                              std::optional<ScalarType> out_type) {
  const auto wide = input.scalar_type() == at::kChar ? at::kInt : at::kFloat;
  auto result = product(decompress(values, metadata), input.t(), wide);
  if (given(bias)) {
    result = result + bias->to(wide).unsqueeze(-1);
  }
  if (activation == "relu") {
    result = result.relu();
  } else if (activation == "silu") {
    result = at::silu(result);
  } else {
    TORCH_CHECK(!activation || activation->empty() || activation == "none", "Activation \"",
                *activation, "\" is not supported for given input and meta types");
  }
  return result.to(out_type.value_or(input.scalar_type())).t();
}

// ---- cuSPARSELt ----

Tensor cslt_compress(const Tensor& dense) {
  const auto [values, metadata] = compress(dense);
  return at::cat({values, metadata.view(values.scalar_type()).view({values.size(0), -1})}, 1);
}

Tensor cslt_mm(const Tensor& compressed, const Tensor& right, const MaybeTensor& bias,
               const MaybeTensor& alpha, std::optional<ScalarType> out_type, bool transpose_result,
               int64_t /*algorithm*/, int64_t /*split_k*/, int64_t /*split_k_mode*/) {
  const auto width = right.size(0) / 2;
  const auto encoding = encoding_of(compressed);
  const auto values = compressed.narrow(1, 0, width);
  const auto metadata =
      compressed.narrow(1, width, compressed.size(1) - width).contiguous().view(encoding.type);
  const auto wide = right.scalar_type() == at::kChar ? at::kInt : at::kFloat;
  auto result = product(decompress(values, metadata), right, wide).to(at::kFloat);
  if (given(alpha)) {
    result = result * (alpha->numel() == 1 ? alpha->reshape({}) : alpha->unsqueeze(-1));
  }
  if (given(bias)) {
    result = result + bias->to(at::kFloat).unsqueeze(-1);
  }
  result = result.to(out_type.value_or(right.scalar_type()));
  return transpose_result ? result.t().contiguous() : result;
}

int64_t cslt_search(const Tensor&, const Tensor&, const MaybeTensor&, const MaybeTensor&,
                    std::optional<ScalarType>, bool) {
  return 0;  // every algorithm is the same here
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_to_sparse_semi_structured", composed<&to_semi_structured>());
  m.impl("_sparse_semi_structured_mm", composed<&semi_structured_mm>());
  m.impl("_sparse_semi_structured_addmm", composed<&semi_structured_addmm>());
  m.impl("_sparse_semi_structured_linear", composed<&semi_structured_linear>());
  m.impl("_cslt_compress", composed<&cslt_compress>());
  m.impl("_cslt_sparse_mm", composed<&cslt_mm>());
  m.impl("_cslt_sparse_mm_search", &cslt_search);
}

}  // namespace anydevice::kernels
