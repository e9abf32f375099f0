// Ops that pick with random numbers: dropout, rrelu, randperm and multinomial, each in the order of its
// own CUDA kernel.
#include "grid_stride.h"

#include <ATen/Dispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/multinomial_native.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace anydevice::random {
namespace {

using at::Tensor;

// ---- dropout

// How many elements a thread takes at a time: as many as fit in 16 bytes, if memory is dense and
// aligned and nothing is left over. With 1, the order is the logical one instead of memory's.
template <typename scalar_t>
int vector_size(const Tensor& self) {
  if (!self.is_non_overlapping_and_dense()) {
    return 1;
  }
  int size = 16 / static_cast<int>(sizeof(scalar_t));
  const auto address = reinterpret_cast<uintptr_t>(self.const_data_ptr());
  while (size > 1 && (address % (size * sizeof(scalar_t)) != 0 || self.numel() % size != 0)) {
    size /= 2;
  }
  return size;
}

// Thread t takes elements t·size …, then those a whole grid further; 4 words serve 4 elements.
template <typename scalar_t, typename mask_t>
void drop_vectors(
    const Tensor& self, Tensor& result, Tensor& mask, double keep, Philox start,
    const Launch& grid, int size) {
  using math_t = real_t<scalar_t>;
  const auto chance = static_cast<math_t>(keep);
  const auto scale = static_cast<math_t>(1.0 / chance);
  const auto* in = self.const_data_ptr<scalar_t>();
  auto* out = result.mutable_data_ptr<scalar_t>();
  auto* kept = mask.mutable_data_ptr<mask_t>();
  const int64_t vectors = self.numel() / size;
  const int draws = size == 8 ? 2 : 1, used = std::min(size, 4);
  at::parallel_for(0, (vectors + block_threads - 1) / block_threads, 16, [&](int64_t b, int64_t e) {
    Words words;
    for (int64_t block = b; block < e; ++block) {
      const int64_t first = block * block_threads;
      const int threads = static_cast<int>(std::min<int64_t>(block_threads, vectors - first));
      const int64_t round = first / grid.threads, thread = first % grid.threads;
      for (int draw = 0; draw < draws; ++draw) {
        const auto counter = start.offset / 4 + round * draws + draw;
        philox_block(start.seed, counter, thread, threads, words);
        for (int t = 0; t < threads; ++t) {
          for (int lane = 0; lane < used; ++lane) {
            const int64_t i = (first + t) * size + draw * 4 + lane;
            const float keeps = uniform(words[lane][t]) < chance;
            out[i] = static_cast<scalar_t>(static_cast<math_t>(in[i]) * keeps * scale);
            kept[i] = static_cast<mask_t>(keeps);
          }
        }
      }
    }
  });
}

template <typename scalar_t, typename mask_t>
void drop_each(
    const Tensor& self, Tensor& result, Tensor& mask, double keep, Philox start,
    const Launch& grid) {
  using math_t = real_t<scalar_t>;
  const auto chance = static_cast<math_t>(keep);
  const auto scale = static_cast<math_t>(1.0 / chance);
  const auto source = self.contiguous();
  const bool direct = result.is_contiguous();
  auto dense_result = direct ? result : at::empty(self.sizes(), result.options());
  auto dense_mask = direct ? mask : at::empty(self.sizes(), mask.options());
  const auto* in = source.template const_data_ptr<scalar_t>();
  auto* out = dense_result.template mutable_data_ptr<scalar_t>();
  auto* kept = dense_mask.template mutable_data_ptr<mask_t>();
  const auto store = [&](int64_t first, int count, const float* values) {
    for (int i = 0; i < count; ++i) {
      const float keeps = values[i] < chance;
      out[first + i] = static_cast<scalar_t>(static_cast<math_t>(in[first + i]) * keeps * scale);
      kept[first + i] = static_cast<mask_t>(keeps);
    }
  };
  grid_stride<float>(start, grid, self.numel(), &to_uniform, store);
  if (!direct) {
    result.copy_(dense_result);
    mask.copy_(dense_mask);
  }
}

template <typename mask_t>
std::tuple<Tensor, Tensor> dropout(
    const Tensor& self, double keep, const MaybeGenerator& generator) {
  auto mask = at::empty_like(self, self.options().dtype(c10::CppTypeToScalarType<mask_t>::value));
  if (self.numel() == 0) {
    return {self.clone(), mask};
  }
  auto result = at::empty_like(self);
  const auto grid = launch(self.numel(), 4, self.get_device());
  const auto start = draw(generator, self.get_device(), grid.increment);
  if (machine.hollow) {
    return {result, mask};
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, self.scalar_type(), "fused_dropout", [&] {
        const int size = vector_size<scalar_t>(self);
        if (size > 1) {
          drop_vectors<scalar_t, mask_t>(self, result, mask, keep, start, grid, size);
        } else {
          drop_each<scalar_t, mask_t>(self, result, mask, keep, start, grid);
        }
      });
  return {result, mask};
}

std::tuple<Tensor, Tensor> native_dropout_cuda(
    const Tensor& self, double p, std::optional<bool> train) {
  const auto flags = self.options().dtype(at::kBool);
  if (train.has_value() && !*train) {
    return {self.clone(), at::ones_like(self, flags)};
  }
  if (p == 1) {
    return {at::zeros_like(self), at::zeros_like(self, flags)};
  }
  return dropout<bool>(self, 1.0 - p, std::nullopt);
}

std::tuple<Tensor, Tensor> fused_dropout_cuda(
    const Tensor& self, double keep, MaybeGenerator generator) {
  return dropout<uint8_t>(self, keep, generator);
}

// ---- rrelu

template <typename scalar_t>
void rrelu_elements(
    const Tensor& self, Tensor& noise, Tensor& result, double lower, double range, Philox start,
    const Launch& grid) {
  using math_t = real_t<scalar_t>;
  const auto* in = self.const_data_ptr<scalar_t>();
  auto* slope = noise.mutable_data_ptr<scalar_t>();
  auto* out = result.mutable_data_ptr<scalar_t>();
  const auto store = [&](int64_t first, int count, const math_t* values) {
    for (int64_t i = first; i < first + count; ++i) {
      const auto u = static_cast<double>(static_cast<scalar_t>(values[i - first]));
      const bool negative = in[i] <= 0;
      slope[i] = negative ? static_cast<scalar_t>(std::fma(u, range, lower)) : scalar_t(1);
      out[i] = negative ? static_cast<scalar_t>(in[i] * slope[i]) : in[i];
    }
  };
  grid_stride<math_t>(start, grid, self.numel(), &to_uniform, store);
}

Tensor& rrelu_out_cuda(
    const Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
    bool training, MaybeGenerator generator, Tensor& output) {
  at::native::resize_output(output, self.sizes());
  if (self.numel() == 0) {
    return output;
  }
  const auto low = lower.to<double>(), high = upper.to<double>();
  if (!training) {
    return at::leaky_relu_out(output, self, (low + high) / 2);
  }
  const auto grid = launch(self.numel(), self.scalar_type() == at::kDouble ? 2 : 4, self.get_device());
  const auto start = draw(generator, self.get_device(), grid.increment);
  if (machine.hollow) {
    return output;
  }
  auto dense_noise = noise.contiguous(), dense_output = output.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, self.scalar_type(), "rrelu_with_noise_out_cuda", [&] {
        rrelu_elements<scalar_t>(
            self.contiguous(), dense_noise, dense_output, low, high - low, start, grid);
      });
  if (!output.is_contiguous()) {
    output.copy_(dense_output);
  }
  return output;
}

Tensor rrelu_cuda(
    const Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
    bool training, MaybeGenerator generator) {
  auto output = at::empty_like(self, at::MemoryFormat::Contiguous);
  return rrelu_out_cuda(self, noise, lower, upper, training, std::move(generator), output);
}

Tensor& rrelu_cuda_(
    Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper, bool training,
    MaybeGenerator generator) {
  return rrelu_out_cuda(self, noise, lower, upper, training, std::move(generator), self);
}

// ---- randperm: random keys are drawn, and 0 … n-1 sorted by their low bits

// So many bits that equal keys are rare; those there are get shuffled among themselves.
int key_bits(int64_t n) {
  const double threshold = std::log(0.9) * 12, size = static_cast<double>(n);
  return std::min(
      64, static_cast<int>(std::ceil(std::log2(size - (6 * size * size + 1) / threshold))));
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
  // What the card keeps in memory meanwhile, beside the sort's own scratch space.
  const auto range = at::arange(n, result.options());
  const int bits = key_bits(n);
  const bool narrow = bits <= 32;
  const auto type = narrow ? at::kInt : at::kLong;
  auto keys = at::empty({n}, result.options().dtype(type));
  keys.random_(
      narrow ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min(),
      narrow ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max(),
      generator);
  const auto sorted_keys = at::empty_like(keys);
  const auto start = draw(generator, result.get_device(), n);
  if (machine.hollow) {
    return result;
  }
  const auto order = narrow ? permutation<int32_t>(keys, bits, start)
                            : permutation<int64_t>(keys, bits, start);
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
    const auto counter = start.offset / 4 + row / rows_at_once;
    const int64_t first_thread = row % rows_at_once * row_threads;
    for (int64_t i = 0; i < samples; ++i) {
      if (i % block_threads == 0) {
        philox_block(start.seed, counter, first_thread + i, block_threads, words);
      }
      out[row * samples + i] = find_category(
          sums.data(), chances.data(), categories,
          static_cast<scalar_t>(uniform(words[0][i % block_threads])));
    }
  }
}

void multinomial_with_replacement_kernel(
    Tensor& result, const Tensor& self, int64_t samples, MaybeGenerator generator) {
  const auto weights = (self.dim() == 1 ? self.unsqueeze(0) : self).contiguous();
  const int64_t rows = weights.size(0);
  result.resize_({rows, samples});
  constexpr int64_t most_rows = 65535;  // a grid's second dimension
  const int64_t rows_at_once = std::min(rows, most_rows);
  const auto start =
      draw(generator, self.get_device(), ((rows - 1) / rows_at_once + 1) * 4);
  if (!machine.hollow) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, weights.scalar_type(), "multinomial_kernel_cuda", [&] {
          sample_rows<scalar_t>(weights, result, start, rows_at_once);
        });
  }
  if (self.dim() == 1) {
    result.resize_({samples});
  }
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("native_dropout", &native_dropout_cuda);
  m.impl("_fused_dropout", &fused_dropout_cuda);
  m.impl("rrelu_with_noise", &rrelu_cuda);
  m.impl("rrelu_with_noise_", &rrelu_cuda_);
  m.impl("rrelu_with_noise.out", &rrelu_out_cuda);
  m.impl("randperm.generator_out", &randperm_out_cuda);
  at::native::multinomial_with_replacement_stub.set_cuda_dispatch_ptr(
      &multinomial_with_replacement_kernel);
  m.impl("multinomial", &at::native::multinomial);
  m.impl("multinomial.out", &at::native::multinomial_out);
}

}  // namespace anydevice::random
