// Philox4_32-10 as cuRAND's device functions and PyTorch's CUDA kernels use it: a seed, a thread
// (the "subsequence") and an offset give four words. No torch is needed.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace anydevice::random {

// Where a kernel starts: the generator's seed and its offset, a multiple of 4.
struct Philox {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// ---- words

constexpr int block_threads = 256;  // of PyTorch's distribution kernels

// The four words of each thread of a block, word by word, so that loops over threads vectorise.
using Words = std::array<std::array<uint32_t, block_threads>, 4>;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// Without contraction, so that every processor gives the same bits.
#define ANYDEVICE_VECTORISED \
  __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3", "fp-contract=off")))
#else
#define ANYDEVICE_VECTORISED [[maybe_unused]]
#endif

// `counter` is offset / 4 plus the number of the call; threads first_thread … + threads - 1.
ANYDEVICE_VECTORISED static void philox_block(uint64_t seed, uint64_t counter,
                                              uint64_t first_thread, int threads, Words& words) {
  constexpr uint32_t multiplier_0 = 0xD2511F53, multiplier_1 = 0xCD9E8D57;
  constexpr uint32_t weyl_0 = 0x9E3779B9, weyl_1 = 0xBB67AE85;
  for (int t = 0; t < threads; ++t) {
    const uint64_t thread = first_thread + static_cast<uint64_t>(t);
    uint32_t x = static_cast<uint32_t>(counter), y = static_cast<uint32_t>(counter >> 32);
    uint32_t z = static_cast<uint32_t>(thread), w = static_cast<uint32_t>(thread >> 32);
    uint32_t key_0 = static_cast<uint32_t>(seed), key_1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t product_0 = static_cast<uint64_t>(multiplier_0) * x;
      const uint64_t product_1 = static_cast<uint64_t>(multiplier_1) * z;
      x = static_cast<uint32_t>(product_1 >> 32) ^ y ^ key_0;
      y = static_cast<uint32_t>(product_1);
      z = static_cast<uint32_t>(product_0 >> 32) ^ w ^ key_1;
      w = static_cast<uint32_t>(product_0);
      key_0 += weyl_0;
      key_1 += weyl_1;
    }
    words[0][t] = x;
    words[1][t] = y;
    words[2][t] = z;
    words[3][t] = w;
  }
}

// ---- from words to numbers, bit for bit as curand_uniform and its relatives

inline float uniform(uint32_t x) { return static_cast<float>(x) * 0x1p-32F + 0x1p-33F; }  // (0, 1]

inline double uniform(uint32_t x, uint32_t y) {  // (0, 1]
  const uint64_t bits = static_cast<uint64_t>(x) ^ (static_cast<uint64_t>(y) << 21);
  return static_cast<double>(bits) * 0x1p-53 + 0x1p-54;
}

// Box–Muller. The card takes its sine and cosine from a table with about 21 good bits, which is
// not public: normals agree to that. The polynomials are Cephes'; as loops without calls and
// branches they vectorise, if the compiler may ignore errno and floating-point traps.

inline float log_of(float u) {
  const auto bits = std::bit_cast<uint32_t>(u);
  const int exponent = static_cast<int>(bits - 0x3F3504F3) >> 23;  // what remains is about 1
  const float x = std::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1;
  const float square = x * x, e = static_cast<float>(exponent);
  float p = 7.0376836292e-2F;
  p = p * x - 1.1514610310e-1F;
  p = p * x + 1.1676998740e-1F;
  p = p * x - 1.2420140846e-1F;
  p = p * x + 1.4249322787e-1F;
  p = p * x - 1.6668057665e-1F;
  p = p * x + 2.0000714765e-1F;
  p = p * x - 2.4999993993e-1F;
  p = p * x + 3.3333331174e-1F;
  return x + (p * x * square - 2.12194440e-4F * e - 0.5F * square) + 0.693359375F * e;
}

struct Normals {
  float first, second;
};
inline Normals normals(uint32_t x, uint32_t y) {
  constexpr double turn = 0x1p-32F * 6.2831855F;
  const float radius = std::sqrt(-2.0F * log_of(uniform(x)));
  const auto angle = static_cast<float>(static_cast<float>(y) * turn + turn / 2);  // as if fused
  const int quarter = static_cast<int>(angle * 0.636619772F + 0.5F);
  const float q = static_cast<float>(quarter);
  const float r = ((angle - q * 1.5703125F) - q * 4.837512969970703e-4F) - q * 7.5497899e-8F;
  const float z = r * r;
  const float sine =
      ((-1.9515295891e-4F * z + 8.3321608736e-3F) * z - 1.6666654611e-1F) * z * r + r;
  const float cosine =
      ((2.4433157118e-5F * z - 1.3887316255e-3F) * z + 4.1666645683e-2F) * z * z - 0.5F * z + 1;
  const float a = quarter & 1 ? cosine : sine, b = quarter & 1 ? sine : cosine;
  return {(quarter & 2 ? -a : a) * radius, ((quarter + 1) & 2 ? -b : b) * radius};
}

ANYDEVICE_VECTORISED static void normals_block(const uint32_t* x, const uint32_t* y, int count,
                                               float* first, float* second) {
  for (int i = 0; i < count; ++i) {
    const auto pair = normals(x[i], y[i]);
    first[i] = pair.first;
    second[i] = pair.second;
  }
}

struct DoubleNormals {
  double first, second;
};
inline DoubleNormals normals(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  constexpr double pi = 3.14159265358979323846;
  const double radius = std::sqrt(-2.0 * std::log(uniform(x, y)));
  const uint64_t bits = static_cast<uint64_t>(z) ^ (static_cast<uint64_t>(w) << 21);
  const double half_turns = static_cast<double>(bits) * 0x1p-52 + 0x1p-53;
  const int quarter = static_cast<int>(2 * half_turns + 0.5);
  const double angle = pi * (half_turns - 0.5 * quarter);
  const double sine = std::sin(angle), cosine = std::cos(angle);
  const double a = quarter & 1 ? cosine : sine, b = quarter & 1 ? sine : cosine;
  return {(quarter & 2 ? -a : a) * radius, ((quarter + 1) & 2 ? -b : b) * radius};
}

// ---- one thread's own sequence, a word at a time: curand_init and curand

class Sequence {
 public:
  using result_type = uint32_t;  // a standard random bit generator

  Sequence(Philox start, uint64_t thread)
      : seed_(start.seed), counter_(start.offset / 4), thread_(thread) {}

  uint32_t operator()() {
    if (next_ == 4) {
      philox_block(seed_, counter_++, thread_, 1, words_);
      next_ = 0;
    }
    return words_[next_++][0];
  }
  static constexpr uint32_t min() { return 0; }
  static constexpr uint32_t max() { return 0xFFFFFFFF; }

  float normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const uint32_t x = (*this)();
    const auto pair = normals(x, (*this)());
    spare_ = pair.second;
    has_spare_ = true;
    return pair.first;
  }

 private:
  uint64_t seed_, counter_, thread_;
  int next_ = 4;
  bool has_spare_ = false;
  float spare_ = 0;
  Words words_;
};

// ---- how PyTorch lays a kernel out on the card

struct Launch {
  int64_t threads;    // of the whole grid
  int64_t rounds;     // of the grid-stride loop
  int64_t increment;  // of the generator's offset

  // Each thread makes `unroll` numbers from one draw of four words.
  Launch(int64_t numel, int unroll, int multiprocessors, int threads_per_multiprocessor) {
    const int64_t at_once =
        static_cast<int64_t>(multiprocessors) * (threads_per_multiprocessor / block_threads);
    const int64_t blocks = std::clamp<int64_t>((numel + block_threads - 1) / block_threads, 1,
                                               std::max<int64_t>(1, at_once));
    threads = blocks * block_threads;
    rounds = (numel - 1) / (threads * unroll) + 1;
    increment = rounds * 4;
  }
};

}  // namespace anydevice::random
