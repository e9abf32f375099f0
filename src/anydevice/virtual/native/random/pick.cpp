// randperm and multinomial, in the order of their CUDA kernels.
#include "grid_stride.h"

#include <ATen/Dispatch.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/multinomial_native.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace anydevice::random {
namespace {

using at::Tensor;

// ---- randperm: random keys are drawn, and 0 … n-1 sorted by their low bits

// So many bits that equal keys are rare; those there are get shuffled among themselves.
int key_bits(int64_t n) {
  const double threshold = std::log(0.9) * 12, size = static_cast<double>(n);
  return std::min(64,
                  static_cast<int>(std::ceil(std::log2(size - (6 * size * size + 1) / threshold))));
}

struct Item {
  uint64_t key;
  int64_t value;
};

// A radix sort: equal keys keep their order.
void sort_by_key(std::vector<Item>& items, int bits) {
  constexpr int digit = 11;
  std::vector<Item> sorted(items.size());
  for (int shift = 0; shift < bits; shift += digit) {
    const auto bucket = [&](const Item& item) { return (item.key >> shift) % (1 << digit); };
    std::array<size_t, (1 << digit) + 1> begin{};
    for (const auto& item : items) {
      ++begin[bucket(item) + 1];
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const auto& item : items) {
      sorted[begin[bucket(item)]++] = item;
    }
    items.swap(sorted);
  }
}

template <typename key_t>
std::vector<Item> permutation(const Tensor& keys, int bits, Philox start) {
  constexpr int width = sizeof(key_t) * 8;
  const uint64_t mask = ~uint64_t{0} >> (64 - bits), sign = uint64_t{1} << (width - 1);
  const auto* key = keys.const_data_ptr<key_t>();
  std::vector<Item> items(keys.numel());
  for (size_t i = 0; i < items.size(); ++i) {
    items[i] = {(static_cast<uint64_t>(key[i]) ^ sign) & mask, static_cast<int64_t>(i)};
  }
  sort_by_key(items, bits);

  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    for (end = begin + 1; end < items.size() && items[end].key == items[begin].key;) {
      ++end;
    }
    Sequence sequence(start, begin);
    for (auto i = static_cast<uint32_t>(end - begin - 1); i > 0; --i) {
      std::swap(items[begin + i].value, items[begin + sequence() % (i + 1)].value);
    }
  }
  return items;
}

Tensor& randperm_out_cuda(int64_t n, MaybeGenerator generator, Tensor& result) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  at::native::check_supported_max_int_with_precision(n, result);
  result.resize_({n});
  if (n == 0) {
    return result;
  }
  // What the card keeps in memory meanwhile, as well as the sort's scratch space.
  const auto range = at::arange(n, result.options());
  const int bits = key_bits(n);
  const bool narrow = bits <= 32;
  const auto type = narrow ? at::kInt : at::kLong;
  auto keys = at::empty({n}, result.options().dtype(type));
  keys.random_(narrow ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min(),
               narrow ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max(),
               generator);
  const auto sorted_keys = at::empty_like(keys);
  const auto start = draw(generator, result.get_device(), n);
  if (machine.hollow) {
    return result;
  }
  const auto order =
      narrow ? permutation<int32_t>(keys, bits, start) : permutation<int64_t>(keys, bits, start);
  auto dense = result.contiguous();
  AT_DISPATCH_ALL_TYPES_AND(at::kHalf, result.scalar_type(), "randperm_out_cuda", [&] {
    auto* out = dense.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<scalar_t>(order[i].value);
    }
  });
  if (!result.is_contiguous()) {
    result.copy_(dense);
  }
  return result;
}

// ---- multinomial with replacement: a word for each sample, looked up in the running sum. The sums
// are rounded in another order than the card's, which can matter at the border of two categories.
// (Without replacement, PyTorch itself makes it of exponential_ and topk.)

template <typename scalar_t>
int64_t find_category(const scalar_t* sums, const scalar_t* chances, int64_t size, scalar_t value) {
  int64_t found = std::lower_bound(sums, sums + size, value) - sums;
  found = std::min(found, size - 1);
  while (found >= 1 && chances[found] == 0) {
    --found;
  }
  return found;
}

template <typename scalar_t>
void sample_rows(const Tensor& weights, Tensor& result, Philox start, int64_t rows_at_once) {
  const int64_t rows = weights.size(0), categories = weights.size(1), samples = result.size(1);
  constexpr int64_t threads = 128;
  const int64_t row_threads = (samples + threads - 1) / threads * threads;
  const auto* weight = weights.const_data_ptr<scalar_t>();
  auto* out = result.mutable_data_ptr<int64_t>();
  std::vector<scalar_t> chances(categories), sums(categories);
  Words words;
  for (int64_t row = 0; row < rows; ++row) {
    const auto* of_row = weight + row * categories;
    real_t<scalar_t> total = 0, sum = 0;
    for (int64_t i = 0; i < categories; ++i) {
      total += of_row[i];
    }
    for (int64_t i = 0; i < categories; ++i) {
      chances[i] = static_cast<scalar_t>(of_row[i] / total);
      sum += chances[i];
      sums[i] = static_cast<scalar_t>(sum);
    }
    const bool negative = std::any_of(of_row, of_row + categories,
                                      [](scalar_t chance) { return chance < scalar_t(0); });
    if (samples > 0 && (negative || !(sum > 0))) {
      throw_device_assert("a probability is negative, infinite or NaN, or all of them are zero");
    }
    const auto counter = start.offset / 4 + row / rows_at_once;
    const int64_t first_thread = row % rows_at_once * row_threads;
    for (int64_t i = 0; i < samples; ++i) {
      if (i % block_threads == 0) {
        philox_block(start.seed, counter, first_thread + i, block_threads, words);
      }
      out[row * samples + i] =
          find_category(sums.data(), chances.data(), categories,
                        static_cast<scalar_t>(uniform(words[0][i % block_threads])));
    }
  }
}

void multinomial_with_replacement_kernel(Tensor& result, const Tensor& self, int64_t samples,
                                         MaybeGenerator generator) {
  const auto weights = (self.dim() == 1 ? self.unsqueeze(0) : self).contiguous();
  const int64_t rows = weights.size(0);
  result.resize_({rows, samples});
  constexpr int64_t most_rows = 65535;  // a grid's second dimension
  const int64_t rows_at_once = std::min(rows, most_rows);
  const auto start = draw(generator, self.get_device(), ((rows - 1) / rows_at_once + 1) * 4);
  if (!machine.hollow) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, weights.scalar_type(), "multinomial_kernel_cuda",
        [&] { sample_rows<scalar_t>(weights, result, start, rows_at_once); });
  }
  if (self.dim() == 1) {
    result.resize_({samples});
  }
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("randperm.generator_out", &randperm_out_cuda);
  at::native::multinomial_with_replacement_stub.set_cuda_dispatch_ptr(
      &multinomial_with_replacement_kernel);
  m.impl("multinomial", &at::native::multinomial);
  m.impl("multinomial.out", &at::native::multinomial_out);
}

}  // namespace anydevice::random
