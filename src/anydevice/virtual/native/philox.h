// Philox4_32-10 as cuRAND's device functions and PyTorch's CUDA kernels use it: a seed, a thread (the
// "subsequence") and an offset give four words. No torch is needed.
#pragma once

#include <algorithm>
#include <array>
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
#define ANYDEVICE_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define ANYDEVICE_VECTORISED
#endif

// `counter` is offset / 4 plus the number of the call; threads first_thread … + threads - 1.
ANYDEVICE_VECTORISED static void philox_block(
    uint64_t seed, uint64_t counter, uint64_t first_thread, int threads, Words& words) {
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

constexpr float two_to_minus_32 = 0x1p-32F;
constexpr float two_pi_to_minus_32 = 0x1p-32F * 6.2831855F;

inline float uniform(uint32_t x) { return static_cast<float>(x) * 0x1p-32F + 0x1p-33F; }  // (0, 1]

inline double uniform(uint32_t x, uint32_t y) {  // (0, 1]
  const uint64_t bits = static_cast<uint64_t>(x) ^ (static_cast<uint64_t>(y) << 21);
  return static_cast<double>(bits) * 0x1p-53 + 0x1p-54;
}

// Box–Muller. The card takes its sine and cosine from a table with about 21 good bits, which cannot be
// had here: normals agree to that.
struct Normals {
  float first, second;
};
inline Normals normals(uint32_t x, uint32_t y) {
  const float radius = std::sqrt(-2.0F * std::log(uniform(x)));
  const float angle =
      std::fma(static_cast<float>(y), two_pi_to_minus_32, two_pi_to_minus_32 / 2);
  return {std::sin(angle) * radius, std::cos(angle) * radius};
}

struct DoubleNormals {
  double first, second;
};
inline DoubleNormals normals(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const double radius = std::sqrt(-2.0 * std::log(uniform(x, y)));
  const uint64_t bits = static_cast<uint64_t>(z) ^ (static_cast<uint64_t>(w) << 21);
  const double half_turns = static_cast<double>(bits) * 0x1p-52 + 0x1p-53;
  constexpr double pi = 3.14159265358979323846;
  return {std::sin(pi * half_turns) * radius, std::cos(pi * half_turns) * radius};
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
    const int64_t blocks = std::min<int64_t>(
        (numel + block_threads - 1) / block_threads,
        static_cast<int64_t>(multiprocessors) * (threads_per_multiprocessor / block_threads));
    threads = blocks * block_threads;
    rounds = (numel - 1) / (threads * unroll) + 1;
    increment = rounds * 4;
  }
};

}  // namespace anydevice::random
