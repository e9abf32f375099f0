// Distributions that depend on a tensor: Bernoulli with probabilities, Poisson, gamma, Dirichlet
// and binomial. Each element (or each four) has a thread, which draws from its own sequence.
#include "generator.h"

#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/native/Distributions.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/bernoulli_native.h>

#include <random>

namespace anydevice::random {
namespace {

using at::Tensor;

#define ANYDEVICE_DISPATCH_REAL_TENSOR(tensor, name, ...)                                 \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, (tensor).scalar_type(), name, \
                                  __VA_ARGS__)

constexpr int64_t grain = 2048;

// A kernel that fails an assertion leaves the device unusable; here only the op fails.
[[noreturn]] void device_assert() {
  constexpr int assertion = 710;  // cudaErrorAssert
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, assertion,
      "CUDA error: device-side assert triggered\n"
      "CUDA kernel errors might be asynchronously reported at some other API call, so the "
      "stacktrace "
      "below might be incorrect.\n"
      "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
      "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n");
}

// ---- the order of elements in CUDA_tensor_apply2: dimensions are exchanged so that the strides of
// both tensors fall, as far as that makes neither worse; the last one runs fastest

class Walk {
 public:
  Walk(const at::TensorBase& a, const at::TensorBase& b)
      : sizes_(a.sizes().begin(), a.sizes().end()),
        a_(a.strides().begin(), a.strides().end()),
        b_(b.strides().begin(), b.strides().end()) {
    for (size_t i = 0; i + 1 < sizes_.size(); ++i) {
      for (size_t j = i + 1; sizes_[i] != 1 && j < sizes_.size(); ++j) {
        const bool rises = a_[i] < a_[j] || b_[i] < b_[j];
        const bool falls = a_[i] > a_[j] || b_[i] > b_[j];
        if (sizes_[j] != 1 && rises && !falls) {
          std::swap(sizes_[i], sizes_[j]);
          std::swap(a_[i], a_[j]);
          std::swap(b_[i], b_[j]);
        }
      }
    }
  }

  // The places of the n-th element, in elements.
  std::pair<int64_t, int64_t> operator()(int64_t n) const {
    int64_t a = 0, b = 0;
    for (size_t i = sizes_.size(); i-- > 0;) {
      const int64_t along = n % sizes_[i];
      a += along * a_[i];
      b += along * b_[i];
      n /= sizes_[i];
    }
    return {a, b};
  }

 private:
  c10::SmallVector<int64_t, 6> sizes_, a_, b_;
};

// ---- Bernoulli: a thread draws four words for four elements in a row

template <typename scalar_t, typename chance_t>
void bernoulli_elements(const at::TensorBase& self, const at::TensorBase& chances, Philox start) {
  const Walk walk(self, chances);
  auto* out = self.mutable_data_ptr<scalar_t>();
  const auto* chance = chances.const_data_ptr<chance_t>();
  const int64_t numel = self.numel();
  std::atomic<bool> wrong{false};
  at::parallel_for(0, (numel + 1023) / 1024, 8, [&](int64_t begin, int64_t end) {
    Words words;
    for (int64_t block = begin; block < end; ++block) {
      philox_block(start.seed, start.offset / 4, block * block_threads, block_threads, words);
      const int64_t first = block * 4 * block_threads;
      const int64_t count = std::min<int64_t>(4 * block_threads, numel - first);
      for (int64_t i = 0; i < count; ++i) {
        const auto [to, from] = walk(first + i);
        const auto p = chance[from];
        if (!(0 <= p && p <= 1)) {
          wrong = true;
        }
        out[to] = static_cast<scalar_t>(uniform(words[i % 4][i / 4]) <= p);
      }
    }
  });
  if (wrong) {
    device_assert();
  }
}

void bernoulli_tensor_kernel(const at::TensorBase& self, const at::TensorBase& chances,
                             MaybeGenerator generator) {
  const auto start = draw(generator, self.get_device(), 10);
  TORCH_CHECK(at::isFloatingType(chances.scalar_type()),
              "expected probabilities tensor to have floating type, got ", chances.scalar_type());
  const auto type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto converted = Tensor(chances).to(at::TensorOptions().device(self.device()).dtype(type));
  const auto expanded = at::expand_inplace(Tensor(self), converted);
  if (machine.hollow || self.numel() == 0) {
    return;
  }
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, self.scalar_type(), "bernoulli_tensor_cuda_self_", [&] {
        using chance_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
        bernoulli_elements<scalar_t, chance_t>(self, *expanded, start);
      });
}

// ---- one sequence for each element, in the order of the (contiguous) result

template <typename scalar_t, typename Sample>
void sample_each(const Tensor& result, const Tensor& parameter, Philox start,
                 const Sample& sample) {
  const auto source = parameter.contiguous();
  auto* out = result.mutable_data_ptr<scalar_t>();
  const auto* in = source.const_data_ptr<scalar_t>();
  at::parallel_for(0, result.numel(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Sequence sequence(start, static_cast<uint64_t>(i));
      out[i] = sample(sequence, in[i]);
    }
  });
}

// curand_poisson. Between 64 and 4000 cuRAND inverts an approximation of the incomplete gamma
// function; there the values are Poisson's but not the card's.
double poisson(Sequence& sequence, double lambda) {
  if (lambda < 64) {
    auto product = std::exp(static_cast<float>(lambda));
    unsigned int count = 0;
    do {
      ++count;
      product *= uniform(sequence());
    } while (product > 1.0);
    return count - 1;
  }
  if (lambda > 4000) {
    uint32_t words[4];
    for (auto& word : words) {
      word = sequence();
    }
    const auto normal = normals(words[0], words[1], words[2], words[3]).first;
    return static_cast<unsigned int>(std::sqrt(lambda) * normal + lambda + 0.5);
  }
  return std::poisson_distribution<uint32_t>(lambda)(sequence);
}

Tensor poisson_cuda(const Tensor& lambda, MaybeGenerator generator) {
  auto result = at::empty(lambda.sizes(), lambda.options());
  const auto start = draw(generator, lambda.get_device(), 20);
  if (machine.hollow) {
    return result;
  }
  std::atomic<bool> wrong{false};
  ANYDEVICE_DISPATCH_REAL_TENSOR(result, "poisson_cuda", [&] {
    sample_each<scalar_t>(result, lambda, start, [&](Sequence& sequence, scalar_t rate) {
      if (!(rate >= 0)) {
        wrong = true;
        return scalar_t(0);
      }
      return static_cast<scalar_t>(poisson(sequence, static_cast<double>(rate)));
    });
  });
  if (wrong) {
    device_assert();
  }
  return result;
}

Tensor gamma_cuda(const Tensor& alpha, MaybeGenerator generator) {
  auto result = at::empty(alpha.sizes(), alpha.options());
  const auto start = draw(generator, alpha.get_device(), 10);
  if (machine.hollow) {
    return result;
  }
  ANYDEVICE_DISPATCH_REAL_TENSOR(result, "gamma_cuda", [&] {
    using math_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    sample_each<scalar_t>(result, alpha, start, [](Sequence& sequence, scalar_t shape) {
      const auto next_uniform = [&] { return uniform(sequence()); };
      const auto next_normal = [&] { return sequence.normal(); };
      BaseSampler<math_t, decltype(next_uniform)> uniforms(next_uniform);
      BaseSampler<math_t, decltype(next_normal)> normals(next_normal);
      const auto sample =
          sample_gamma<scalar_t, math_t, decltype(next_uniform), decltype(next_normal)>(
              shape, uniforms, normals);
      return std::max(std::numeric_limits<scalar_t>::min(), sample);
    });
  });
  return result;
}

Tensor dirichlet_cuda(const Tensor& alpha, MaybeGenerator generator) {
  auto result = gamma_cuda(alpha, std::move(generator));
  const auto sum = result.sum(-1, /*keepdim=*/true);
  result.div_(sum);
  double least = 0, most = 1;
  ANYDEVICE_DISPATCH_REAL_TENSOR(result, "dirichlet_cuda", [&] {
    least = static_cast<double>(std::numeric_limits<scalar_t>::min());
    most = 1 - static_cast<double>(std::numeric_limits<scalar_t>::epsilon());
  });
  return result.clamp_(least, most);
}

// ---- binomial: blocks of 128 threads, each thread draws for 8 elements, 128 apart, in turn

template <typename scalar_t>
void binomial_elements(const Tensor& result, const Tensor& counts, const Tensor& chances,
                       Philox start) {
  constexpr int64_t threads = 128, each = 8;
  using math_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
  auto* out = result.mutable_data_ptr<scalar_t>();
  const auto* count = counts.const_data_ptr<scalar_t>();
  const auto* chance = chances.const_data_ptr<scalar_t>();
  const int64_t numel = result.numel();
  const int64_t blocks = (numel + threads * each - 1) / (threads * each);
  at::parallel_for(0, blocks * threads, grain / each, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      Sequence sequence(start, static_cast<uint64_t>(thread));
      const auto next_uniform = [&] {
        return static_cast<float>(sequence() & 0xFFFFFF) * 0x1p-24F;  // [0, 1)
      };
      BaseSampler<math_t, decltype(next_uniform)> uniforms(next_uniform);
      const int64_t first = thread / threads * threads * each + thread % threads;
      const int64_t last = std::min(numel, first + threads * each);
      for (int64_t i = first; i < last; i += threads) {
        out[i] = static_cast<scalar_t>(sample_binomial<scalar_t, math_t, decltype(next_uniform)>(
            count[i], chance[i], uniforms));
      }
    }
  });
}

Tensor binomial_cuda(const Tensor& counts, const Tensor& chances, MaybeGenerator generator) {
  auto result = at::empty(counts.sizes(), counts.options());
  auto iter =  // checks devices and types, broadcasts
      at::TensorIteratorConfig()
          .add_output(result)
          .add_const_input(counts)
          .add_const_input(chances)
          .build();
  const auto start = draw(generator, counts.get_device(), 42);
  if (machine.hollow || iter.numel() == 0) {
    return result;
  }
  const auto count = counts.expand(iter.output().sizes()).contiguous();
  const auto chance = chances.expand(iter.output().sizes()).contiguous();
  ANYDEVICE_DISPATCH_REAL_TENSOR(
      result, "binomial_cuda", [&] { binomial_elements<scalar_t>(result, count, chance, start); });
  return result;
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  at::native::bernoulli_tensor_stub.set_cuda_dispatch_ptr(&bernoulli_tensor_kernel);
  m.impl("bernoulli_.Tensor",
         static_cast<Tensor& (*)(Tensor&, const Tensor&, MaybeGenerator)>(at::native::bernoulli_));
  m.impl("bernoulli.out", &at::native::bernoulli_out);
  m.impl("poisson", &poisson_cuda);
  m.impl("_standard_gamma", &gamma_cuda);
  m.impl("_sample_dirichlet", &dirichlet_cuda);
  m.impl("binomial", &binomial_cuda);
}

}  // namespace anydevice::random
