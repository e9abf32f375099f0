// Products with weights of 4 bits, packed as the tensor cores read them: tiles of 8 rows by 16
// columns, two such tiles to an int32.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

constexpr int64_t rows_in_tile = 8, columns_in_tile = 16, lanes = 32;

// An int32 holds the high halves of four bytes (the even columns), then their low halves.
Tensor pack(const Tensor& self, int64_t inner_tiles) {
  TORCH_CHECK(self.scalar_type() == at::kByte && self.dim() == 2, "expected a 2D uint8 weight");
  TORCH_CHECK(inner_tiles == 2 || inner_tiles == 4 || inner_tiles == 8,
              "expected innerKTiles to be 2, 4 or 8, got ", inner_tiles);
  const auto rows = self.size(0), columns = 2 * self.size(1);
  TORCH_CHECK(rows % rows_in_tile == 0 && columns % (inner_tiles * columns_in_tile) == 0,
              "expected a weight of whole tiles, got ", self.sizes());
  const auto outer = columns / (inner_tiles * columns_in_tile);
  const auto bytes = self.view({rows / rows_in_tile, rows_in_tile, outer, inner_tiles / 2, 4, 4})
                         .permute({0, 2, 1, 5, 3, 4})  // a lane is a row and a byte's place in four
                         .reshape({rows / rows_in_tile, outer, lanes, inner_tiles / 2, 4})
                         .to(at::kLong);
  const auto shift = at::arange(4, bytes.options()) * 4;
  const auto high = at::bitwise_left_shift(bytes.bitwise_right_shift(4), shift).sum(-1);
  const auto low = at::bitwise_left_shift(bytes.bitwise_and(0xF), shift + 16).sum(-1);
  return (high + low).to(at::kInt);
}

Tensor unpacked(const Tensor& packed) {
  const auto tiles = packed.size(0), outer = packed.size(1), inner = packed.size(3);
  const auto shift = at::arange(8, packed.options().dtype(at::kLong)) * 4;
  const auto halves = at::bitwise_right_shift(packed.to(at::kLong).unsqueeze(-1), shift)
                          .bitwise_and(0xF)
                          .view({tiles, outer, rows_in_tile, 4, inner, 2, 4});
  return halves
      .permute({0, 2, 1, 4, 6, 3, 5})  // row, outer tile, inner pair, four, place, half
      .reshape({tiles * rows_in_tile, outer * inner * 2 * columns_in_tile});
}

Tensor multiply(const Tensor& self, const Tensor& packed, int64_t group,
                const Tensor& scales_and_zeros) {
  TORCH_CHECK(self.scalar_type() == at::kBFloat16 && self.dim() == 2 && packed.dim() == 4,
              "expected a 2D bfloat16 matrix and a packed 4D weight");
  TORCH_CHECK(group == 32 || group == 64 || group == 128 || group == 256,
              "expected qGroupSize to be 32, 64, 128 or 256, got ", group);
  const auto weight = unpacked(packed).to(at::kFloat) - 8;
  const auto per_column =
      scales_and_zeros.to(at::kFloat).transpose(0, 1).repeat_interleave(group, 1);
  const auto scaled =
      (weight * per_column.select(-1, 0) + per_column.select(-1, 1)).to(at::kBFloat16);
  return at::mm(self.to(at::kFloat), scaled.to(at::kFloat).t()).to(at::kBFloat16);
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_convert_weight_to_int4pack", composed<&pack>());
  m.impl("_weight_int4pack_mm", composed<&multiply>());
}

}  // namespace anydevice::kernels
