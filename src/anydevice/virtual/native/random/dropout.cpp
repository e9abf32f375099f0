// Dropout and rrelu, in the order of their CUDA kernels.
#include "grid_stride.h"

#include <ATen/Dispatch.h>
#include <ATen/native/Resize.h>

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
void drop_vectors(const Tensor& self, Tensor& result, Tensor& mask, double keep, Philox start,
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
void drop_each(const Tensor& self, Tensor& result, Tensor& mask, double keep, Philox start,
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
std::tuple<Tensor, Tensor> dropout(const Tensor& self, double keep,
                                   const MaybeGenerator& generator) {
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

std::tuple<Tensor, Tensor> native_dropout_cuda(const Tensor& self, double p,
                                               std::optional<bool> train) {
  const auto flags = self.options().dtype(at::kBool);
  if (train.has_value() && !*train) {
    return {self.clone(), at::ones_like(self, flags)};
  }
  if (p == 1) {
    return {at::zeros_like(self), at::zeros_like(self, flags)};
  }
  return dropout<bool>(self, 1.0 - p, std::nullopt);
}

std::tuple<Tensor, Tensor> fused_dropout_cuda(const Tensor& self, double keep,
                                              MaybeGenerator generator) {
  return dropout<uint8_t>(self, keep, generator);
}

// ---- rrelu

template <typename scalar_t>
void rrelu_elements(const Tensor& self, Tensor& noise, Tensor& result, double lower, double range,
                    Philox start, const Launch& grid) {
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

Tensor& rrelu_out_cuda(const Tensor& self, Tensor& noise, const at::Scalar& lower,
                       const at::Scalar& upper, bool training, MaybeGenerator generator,
                       Tensor& output) {
  at::native::resize_output(output, self.sizes());
  if (self.numel() == 0) {
    return output;
  }
  const auto low = lower.to<double>(), high = upper.to<double>();
  if (!training) {
    return at::leaky_relu_out(output, self, (low + high) / 2);
  }
  const auto grid =
      launch(self.numel(), self.scalar_type() == at::kDouble ? 2 : 4, self.get_device());
  const auto start = draw(generator, self.get_device(), grid.increment);
  if (machine.hollow) {
    return output;
  }
  auto dense_noise = noise.contiguous(), dense_output = output.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, self.scalar_type(), "rrelu_with_noise_out_cuda", [&] {
        rrelu_elements<scalar_t>(self.contiguous(), dense_noise, dense_output, low, high - low,
                                 start, grid);
      });
  if (!output.is_contiguous()) {
    output.copy_(dense_output);
  }
  return output;
}

Tensor rrelu_cuda(const Tensor& self, Tensor& noise, const at::Scalar& lower,
                  const at::Scalar& upper, bool training, MaybeGenerator generator) {
  auto output = at::empty_like(self, at::MemoryFormat::Contiguous);
  return rrelu_out_cuda(self, noise, lower, upper, training, std::move(generator), output);
}

Tensor& rrelu_cuda_(Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
                    bool training, MaybeGenerator generator) {
  return rrelu_out_cuda(self, noise, lower, upper, training, std::move(generator), self);
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("native_dropout", &native_dropout_cuda);
  m.impl("_fused_dropout", &fused_dropout_cuda);
  m.impl("rrelu_with_noise", &rrelu_cuda);
  m.impl("rrelu_with_noise_", &rrelu_cuda_);
  m.impl("rrelu_with_noise.out", &rrelu_out_cuda);
}

}  // namespace anydevice::random
