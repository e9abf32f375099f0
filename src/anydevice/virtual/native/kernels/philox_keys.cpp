// torch.func._random: numbers that depend on a key alone, a tensor of [seed, offset]. One Philox
// block gives four numbers, or two doubles; the n-th block of a key is the one at its offset + n.
#include "kernel.h"

#include <ATen/Dispatch.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <cmath>

namespace anydevice::kernels {
namespace {

using PhiloxBlock = std::array<uint32_t, 4>;

PhiloxBlock philox_block(uint64_t seed, uint64_t offset) {
  at::Philox4_32 engine(seed, /*subsequence=*/0, offset);
  return {engine(), engine(), engine(), engine()};
}

void check_key(const Tensor& key) {
  TORCH_CHECK(key.dim() >= 1 && key.size(-1) == 2, "key must have shape (*batch, 2), got shape ",
              key.sizes());
  TORCH_CHECK(key.scalar_type() == at::kUInt64, "key must have dtype uint64, got ",
              key.scalar_type());
}

// ---- keys from keys ----

void derive(const Tensor& keys, uint64_t number, Tensor derived) {
  const auto whole = keys.contiguous();
  const auto* from = whole.const_data_ptr<uint64_t>();
  auto* to = derived.mutable_data_ptr<uint64_t>();
  for (int64_t i = 0; i < keys.numel(); i += 2) {
    const auto block = philox_block(from[i], from[i + 1] + number);
    to[i] = block[0] | static_cast<uint64_t>(block[1]) << 32;
    to[i + 1] = block[2] | static_cast<uint64_t>(block[3]) << 32;
  }
}

Tensor split_key(const Tensor& key, int64_t splits) {
  check_key(key);
  TORCH_CHECK(splits > 0, "_philox_key_split: num_splits must be positive, got ", splits);
  auto shape = key.sizes().vec();
  shape.insert(shape.begin(), splits);
  const auto result = at::empty(shape, key.options());
  for (int64_t split = 0; split < splits && !key.is_meta(); ++split) {
    derive(key, static_cast<uint64_t>(split), result[split]);
  }
  return result;
}

Tensor fold_in(const Tensor& key, int64_t data) {
  check_key(key);
  const auto result = at::empty(key.sizes(), key.options());
  if (!key.is_meta()) {
    derive(key, static_cast<uint64_t>(data), result);
  }
  return result;
}

// ---- numbers from keys ----

// A key for each slice of `self`: trailing dimensions of size 1 of a batched key are one slice.
Tensor key_of_each_slice(const Tensor& self, const Tensor& key) {
  check_key(key);
  if (key.dim() == 1) {
    return key.view({1, 2}).contiguous();
  }
  TORCH_CHECK(key.dim() == self.dim() + 1,
              "batched key must have ndim == output ndim + 1, got key shape ", key.sizes(),
              " with output shape ", self.sizes());
  auto shape = self.sizes().vec();
  for (auto dim = self.dim(); dim-- > 0 && key.size(dim) == 1;) {
    shape[dim] = 1;
  }
  shape.push_back(2);
  return key.expand(shape).reshape({-1, 2}).contiguous();
}

template <typename scalar_t, typename Sample>
void fill_from_keys(Tensor& self, const Tensor& key, Sample sample) {
  const auto keys = key_of_each_slice(self, key);
  if (self.is_meta() || self.numel() == 0) {
    return;
  }
  auto output = at::empty(self.sizes(), self.options());
  auto* numbers = output.mutable_data_ptr<scalar_t>();
  const auto* pairs = keys.const_data_ptr<uint64_t>();
  const auto in_slice = self.numel() / keys.size(0);
  for (int64_t slice = 0; slice < keys.size(0); ++slice) {
    for (int64_t done = 0, number = 0; done < in_slice; ++number) {
      const auto block =
          philox_block(pairs[2 * slice], pairs[2 * slice + 1] + static_cast<uint64_t>(number));
      for (const auto value : sample(block)) {
        if (done < in_slice) {
          numbers[slice * in_slice + done++] = static_cast<scalar_t>(value);
        }
      }
    }
  }
  self.copy_(output);
}

template <typename scalar_t>
auto uniform_of(const PhiloxBlock& block, scalar_t low, scalar_t high) {
  const auto real = [&](auto bits) {
    return static_cast<scalar_t>(at::transformation::uniform_real(bits, low, high));
  };
  if constexpr (std::is_same_v<scalar_t, double>) {
    return std::array{real(static_cast<uint64_t>(block[0]) << 32 | block[1]),
                      real(static_cast<uint64_t>(block[2]) << 32 | block[3])};
  } else {
    return std::array{real(block[0]), real(block[1]), real(block[2]), real(block[3])};
  }
}

template <typename real_t>
std::array<real_t, 2> box_muller(real_t first, real_t second) {
  constexpr auto two_pi = static_cast<real_t>(6.2831853071795864);
  const auto radius = std::sqrt(-2 * std::log(first));
  return {radius * std::cos(two_pi * second), radius * std::sin(two_pi * second)};
}

auto normal_of(const PhiloxBlock& block, double mean, double deviation) {
  constexpr double unit = 2.3283064365386963e-10;  // 2^-32
  const auto real = [&](uint32_t high, uint32_t low) {
    return std::fma(static_cast<double>(high), unit, low * unit * unit + unit * unit * 0.5);
  };
  auto pair = box_muller(real(block[0], block[1]), real(block[2], block[3]));
  return std::array{pair[0] * deviation + mean, pair[1] * deviation + mean};
}

auto normal_of(const PhiloxBlock& block, float mean, float deviation) {
  constexpr float unit = 2.3283064365386963e-10f;
  const auto real = [&](uint32_t bits) {
    return std::fma(static_cast<float>(bits), unit, unit * 0.5f);
  };
  const auto one = box_muller(real(block[0]), real(block[1]));
  const auto two = box_muller(real(block[2]), real(block[3]));
  return std::array{one[0] * deviation + mean, one[1] * deviation + mean, two[0] * deviation + mean,
                    two[1] * deviation + mean};
}

Tensor& uniform_from_key(Tensor& self, const Tensor& key, double low, double high) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, self.scalar_type(), "_philox_uniform_", [&] {
        fill_from_keys<scalar_t>(self, key, [&](const PhiloxBlock& block) {
          return uniform_of(block, static_cast<scalar_t>(low), static_cast<scalar_t>(high));
        });
      });
  return self;
}

Tensor& normal_from_key(Tensor& self, const Tensor& key, double mean, double deviation) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, self.scalar_type(), "_philox_normal_", [&] {
        using real_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
        fill_from_keys<scalar_t>(self, key, [&](const PhiloxBlock& block) {
          return normal_of(block, static_cast<real_t>(mean), static_cast<real_t>(deviation));
        });
      });
  return self;
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_philox_key_split", composed<&split_key>());
  m.impl("_philox_key_fold_in", composed<&fold_in>());
  m.impl("_philox_uniform_", composed<&uniform_from_key>());
  m.impl("_philox_normal_", composed<&normal_from_key>());
}

}  // namespace anydevice::kernels
