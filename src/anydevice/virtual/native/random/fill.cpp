// Distributions that fill a tensor, one draw for each element: uniform, normal, integers,
// Bernoulli, … The kernels behind PyTorch's own functions (its dispatch stubs), which do all the
// checking.
#include "dispatch/known.h"
#include "grid_stride.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/bernoulli_native.h>
#include <ATen/ops/cauchy_native.h>
#include <ATen/ops/exponential_native.h>
#include <ATen/ops/geometric_native.h>
#include <ATen/ops/log_normal_native.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/random_native.h>
#include <ATen/ops/uniform_native.h>

namespace anydevice::random {
namespace {

// ---- one draw for each element of a TensorIterator

// Elements first … first + count - 1 of the output.
struct Place {
  char* out;
  const Offsets* offsets;  // none: the output is contiguous
  int64_t first;
  int count;

  template <typename scalar_t, typename value_t, typename Transform>
  void write(const value_t* values, const Transform& transform) const {
    if (offsets == nullptr) {
      auto* elements = reinterpret_cast<scalar_t*>(out) + first;
      for (int i = 0; i < count; ++i) {
        elements[i] = transform(values[i]);
      }
      return;
    }
    for (int i = 0; i < count; ++i) {
      *reinterpret_cast<scalar_t*>(out + (*offsets)(first + i)) = transform(values[i]);
    }
  }
};

template <typename value_t>
using Write = c10::function_ref<void(const Place& place, const value_t* values)>;

template <typename value_t>
void fill_places(at::TensorIteratorBase& iter, const MaybeGenerator& generator,
                 Convert<value_t>* convert, Write<value_t> write) {
  const int64_t numel = iter.numel();
  if (numel == 0) {
    return;
  }
  const auto device = iter.device(0).index();
  const auto grid = launch(numel, Values<value_t>::unroll, device);
  const auto start = draw(generator, device, grid.increment);
  if (machine.hollow) {
    known::forget(iter.tensor(0));
    return;
  }
  if (!iter.can_use_32bit_indexing()) {  // the card, too, has then drawn once more than it uses
    for (auto& part : iter.with_32bit_indexing()) {
      fill_places<value_t>(part, generator, convert, write);
    }
    return;
  }
  const Offsets offsets(iter);
  auto* out = static_cast<char*>(iter.data_ptr(0));
  const auto* scattered = iter.is_contiguous() ? nullptr : &offsets;
  const auto store = [&](int64_t first, int count, const value_t* values) {
    write({out, scattered, first, count}, values);
  };
  grid_stride<value_t>(start, grid, numel, convert, store);
}

template <typename scalar_t, typename value_t, typename Transform>
void fill(at::TensorIteratorBase& iter, const MaybeGenerator& generator, Convert<value_t>* convert,
          const Transform& transform) {
  const auto write = [&](const Place& place, const value_t* values) {
    place.write<scalar_t>(values, transform);
  };
  fill_places<value_t>(iter, generator, convert, write);
}

template <typename scalar_t, typename Transform>
void fill_uniform(at::TensorIteratorBase& iter, const MaybeGenerator& generator,
                  const Transform& transform) {
  fill<scalar_t, real_t<scalar_t>>(iter, generator, &to_uniform, transform);
}

template <typename scalar_t, typename Transform>
void fill_normal(at::TensorIteratorBase& iter, const MaybeGenerator& generator,
                 const Transform& transform) {
  fill<scalar_t, real_t<scalar_t>>(iter, generator, &to_normal, transform);
}

#define ANYDEVICE_DISPATCH_REAL(iter, name, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, (iter).dtype(), name, __VA_ARGS__)

// ---- transformations. The card multiplies and adds in one rounding, hence std::fma; its fast log,
// exp and tan for float are powers of 2 underneath and differ from these in the last digits.

inline float fast_log(float x) { return std::log2(x) * 0.693147181F; }
inline double fast_log(double x) { return std::log(x); }
inline float fast_exp(float x) { return std::exp2(x * 1.44269504F); }
inline double fast_exp(double x) { return std::exp(x); }
inline float fast_log1p(float x) { return fast_log(1.0F + x); }
inline double fast_log1p(double x) { return std::log1p(x); }

void uniform_kernel(at::TensorIteratorBase& iter, double from, double to,
                    MaybeGenerator generator) {
  ANYDEVICE_DISPATCH_REAL(iter, "uniform_kernel_cuda", [&] {
    const auto low = static_cast<scalar_t>(from), high = static_cast<scalar_t>(to);
    using math_t = real_t<scalar_t>;
    const auto range = static_cast<math_t>(high - low), base = static_cast<math_t>(low);
    fill_uniform<scalar_t>(iter, generator, [=](math_t u) {
      const auto value = static_cast<scalar_t>(std::fma(u, range, base));
      return value == high ? low : value;  // the draw is in (0, 1], the result in [from, to)
    });
  });
}

void normal_kernel(const at::TensorBase& self, double mean, double std, MaybeGenerator generator) {
  auto iter = at::TensorIterator::borrowing_nullary_op(self);
  ANYDEVICE_DISPATCH_REAL(iter, "normal_kernel_cuda", [&] {
    using math_t = real_t<scalar_t>;
    const auto scale = static_cast<math_t>(std), shift = static_cast<math_t>(mean);
    fill_normal<scalar_t>(iter, generator, [=](math_t z) {
      return static_cast<scalar_t>(std::fma(z, scale, shift));
    });
  });
}

void log_normal_kernel(at::TensorIteratorBase& iter, double mean, double std,
                       MaybeGenerator generator) {
  ANYDEVICE_DISPATCH_REAL(iter, "log_normal_cuda", [&] {
    using math_t = real_t<scalar_t>;
    const auto scale = static_cast<math_t>(std), shift = static_cast<math_t>(mean);
    fill_normal<scalar_t>(iter, generator, [=](math_t z) {
      return static_cast<scalar_t>(fast_exp(std::fma(z, scale, shift)));
    });
  });
}

void exponential_kernel(at::TensorIteratorBase& iter, double lambda, MaybeGenerator generator) {
  TORCH_CHECK(
      at::isFloatingType(iter.dtype()),
      "Exponential distribution is a continuous probability distribution. dtype must be a floating "
      "point but you specified ",
      iter.dtype());
  ANYDEVICE_DISPATCH_REAL(iter, "exponential_cuda", [&] {
    using math_t = real_t<scalar_t>;
    const auto rate = static_cast<math_t>(lambda);
    constexpr auto half_epsilon = std::numeric_limits<math_t>::epsilon() / 2;
    fill_uniform<scalar_t>(iter, generator, [=](math_t u) {
      const auto log = u >= 1 - half_epsilon ? -half_epsilon : fast_log(u);
      return static_cast<scalar_t>(-1 / rate * log);
    });
  });
}

void cauchy_kernel(at::TensorIteratorBase& iter, double median, double sigma,
                   MaybeGenerator generator) {
  ANYDEVICE_DISPATCH_REAL(iter, "cauchy_cuda", [&] {
    using math_t = real_t<scalar_t>;
    const auto centre = static_cast<math_t>(median), width = static_cast<math_t>(sigma);
    constexpr auto epsilon = std::numeric_limits<math_t>::epsilon();
    constexpr bool clipped = std::is_same_v<math_t, float>;
    fill_uniform<scalar_t>(iter, generator, [=](math_t u) {
      const auto inside = clipped ? std::clamp<math_t>(u, epsilon, 1 - epsilon) : u;
      const auto tangent = std::tan(c10::pi<math_t> * (inside - static_cast<math_t>(0.5)));
      return static_cast<scalar_t>(std::fma(width, tangent, centre));
    });
  });
}

void geometric_kernel(at::TensorIteratorBase& iter, double p, MaybeGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "geometric_cuda", [&] {
    using math_t = real_t<scalar_t>;
    const auto chance = static_cast<math_t>(p);
    fill_uniform<scalar_t>(iter, generator, [=](math_t u) {
      return static_cast<scalar_t>(std::ceil(fast_log(u) / fast_log1p(-chance)));
    });
  });
}

void bernoulli_kernel(const at::TensorBase& self, double p, MaybeGenerator generator) {
  auto iter = at::TensorIterator::borrowing_nullary_op(self);
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, iter.dtype(), "bernoulli_scalar_cuda_", [&] {
        using math_t = real_t<scalar_t>;
        const auto chance = static_cast<math_t>(p);
        fill_uniform<scalar_t>(iter, generator,
                               [=](math_t u) { return static_cast<scalar_t>(u < chance); });
      });
}

// ---- integers

// `wide`: of two words, 64 bits; otherwise of one.
template <typename scalar_t, typename Transform>
void fill_integer(at::TensorIteratorBase& iter, const MaybeGenerator& generator, bool wide,
                  const Transform& transform) {
  if (wide) {
    fill<scalar_t, uint64_t>(iter, generator, &to_integer, transform);
  } else {
    fill<scalar_t, uint32_t>(iter, generator, &to_integer, transform);
  }
}

void random_from_to_kernel(at::TensorIteratorBase& iter, uint64_t range, int64_t base,
                           MaybeGenerator generator) {
  AT_DISPATCH_V2(iter.dtype(), "random_from_to_kernel_cuda", AT_WRAP([&] {
                   fill_integer<scalar_t>(iter, generator, range >= 1ULL << 28, [=](auto word) {
                     return at::transformation::uniform_int_from_to<scalar_t>(word, range, base);
                   });
                 }),
                 AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16,
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

void random_full_range_kernel(at::TensorIteratorBase& iter, MaybeGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND(
      at::kBFloat16, iter.dtype(), "random_full_64_bits_range_kernel_cuda", [&] {
        TORCH_CHECK(
            (std::is_same_v<scalar_t, int64_t> || at::isFloatingType(iter.dtype())),
            "random_full_64_bits_range_kernel_cuda handles only int64, double, float and bfloat16");
        fill<scalar_t, uint64_t>(iter, generator, &to_integer, [](uint64_t word) {
          return at::transformation::uniform_int_full_range<scalar_t>(word);
        });
      });
}

void random_kernel(at::TensorIteratorBase& iter, MaybeGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, iter.dtype(), "random_kernel_cuda", [&] {
        constexpr bool wide = std::is_same_v<scalar_t, double> || std::is_same_v<scalar_t, int64_t>;
        fill_integer<scalar_t>(iter, generator, wide, [](auto word) {
          return at::transformation::uniform_int<scalar_t>(word);
        });
      });
}

}  // namespace

// PyTorch's stubs for the CUDA device; their CPU kernels are not touched.
void install_fills() {
  namespace stubs = at::native;
  stubs::uniform_stub.set_cuda_dispatch_ptr(&uniform_kernel);
  stubs::normal_stub.set_cuda_dispatch_ptr(&normal_kernel);
  stubs::log_normal_stub.set_cuda_dispatch_ptr(&log_normal_kernel);
  stubs::exponential_stub.set_cuda_dispatch_ptr(&exponential_kernel);
  stubs::cauchy_stub.set_cuda_dispatch_ptr(&cauchy_kernel);
  stubs::geometric_stub.set_cuda_dispatch_ptr(&geometric_kernel);
  stubs::bernoulli_scalar_stub.set_cuda_dispatch_ptr(&bernoulli_kernel);
  stubs::random_from_to_stub.set_cuda_dispatch_ptr(&random_from_to_kernel);
  stubs::random_full_64_bits_range_stub.set_cuda_dispatch_ptr(&random_full_range_kernel);
  stubs::random_stub.set_cuda_dispatch_ptr(&random_kernel);
}

using at::Tensor;

ANYDEVICE_IMPL(aten, CUDA, m) {
  install_fills();
  m.impl("uniform_", &at::native::uniform_);
  m.impl("normal_", &at::native::normal_);
  m.impl("log_normal_", &at::native::log_normal_);
  m.impl("exponential_", &at::native::exponential_);
  m.impl("cauchy_", &at::native::cauchy_);
  m.impl("geometric_", &at::native::geometric_);

  using Maybe = MaybeGenerator;
  m.impl("bernoulli_.float",
         static_cast<Tensor& (*)(Tensor&, double, Maybe)>(at::native::bernoulli_));
  m.impl("random_", static_cast<Tensor& (*)(Tensor&, Maybe)>(at::native::random_));
  m.impl("random_.to", static_cast<Tensor& (*)(Tensor&, int64_t, Maybe)>(at::native::random_));
  m.impl("random_.from", static_cast<Tensor& (*)(Tensor&, int64_t, std::optional<int64_t>, Maybe)>(
                             at::native::random_));
  using In = const Tensor&;
  m.impl("normal.Tensor_float", static_cast<Tensor (*)(In, double, Maybe)>(at::native::normal));
  m.impl("normal.float_Tensor", static_cast<Tensor (*)(double, In, Maybe)>(at::native::normal));
  m.impl("normal.Tensor_Tensor", static_cast<Tensor (*)(In, In, Maybe)>(at::native::normal));
  m.impl("normal.Tensor_float_out",
         static_cast<Tensor& (*)(In, double, Maybe, Tensor&)>(at::native::normal_out));
  m.impl("normal.float_Tensor_out",
         static_cast<Tensor& (*)(double, In, Maybe, Tensor&)>(at::native::normal_out));
  m.impl("normal.Tensor_Tensor_out",
         static_cast<Tensor& (*)(In, In, Maybe, Tensor&)>(at::native::normal_out));
}

}  // namespace anydevice::random
