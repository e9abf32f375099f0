// The loop of PyTorch's CUDA distribution kernels, run on the host: a grid of threads strides over
// the elements, each thread making 2 or 4 values of the four words of a draw.
#pragma once

#include "generator.h"

#include <ATen/Parallel.h>
#include <ATen/native/TensorIterator.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

namespace anydevice::random {

// The values that the threads of a block make of their words, lane by lane.
template <typename value_t>
struct Values {
  static constexpr int unroll = sizeof(value_t) == 8 ? 2 : 4;
  std::array<std::array<value_t, block_threads>, unroll> of;
};

// Doubles take two words of a draw each, everything else is made of a float.
template <typename scalar_t>
using real_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

// Only the first `lanes` lanes of the first `threads` threads are wanted.
template <typename value_t>
using Convert = void(const Words& words, int lanes, int threads, Values<value_t>& values);

inline void to_uniform(const Words& words, int lanes, int threads, Values<float>& values) {
  for (int lane = 0; lane < lanes; ++lane) {
    for (int t = 0; t < threads; ++t) {
      values.of[lane][t] = uniform(words[lane][t]);
    }
  }
}

inline void to_uniform(const Words& words, int lanes, int threads, Values<double>& values) {
  for (int lane = 0; lane < lanes; ++lane) {
    for (int t = 0; t < threads; ++t) {
      values.of[lane][t] = uniform(words[2 * lane][t], words[2 * lane + 1][t]);
    }
  }
}

inline void to_normal(const Words& words, int lanes, int threads, Values<float>& values) {
  for (int lane = 0; lane < lanes; lane += 2) {
    normals_block(words[lane].data(), words[lane + 1].data(), threads, values.of[lane].data(),
                  values.of[lane + 1].data());
  }
}

inline void to_normal(const Words& words, int, int threads, Values<double>& values) {
  for (int t = 0; t < threads; ++t) {
    const auto pair = normals(words[0][t], words[1][t], words[2][t], words[3][t]);
    values.of[0][t] = pair.first;
    values.of[1][t] = pair.second;
  }
}

inline void to_integer(const Words& words, int, int, Values<uint32_t>& values) {
  values.of = words;
}

inline void to_integer(const Words& words, int lanes, int threads, Values<uint64_t>& values) {
  for (int lane = 0; lane < lanes; ++lane) {
    for (int t = 0; t < threads; ++t) {
      values.of[lane][t] =
          (static_cast<uint64_t>(words[2 * lane][t]) << 32) | words[2 * lane + 1][t];
    }
  }
}

// Takes the values of elements first, first + 1, …
template <typename value_t>
using Store = c10::function_ref<void(int64_t first, int count, const value_t* values)>;

// The grid-stride loop: thread t gives its lanes to elements t, t + threads, t + 2 threads, …
template <typename value_t>
void grid_stride(Philox start, const Launch& grid, int64_t numel, Convert<value_t>* convert,
                 Store<value_t> store) {
  constexpr int unroll = Values<value_t>::unroll;
  const int64_t blocks = grid.threads / block_threads;
  at::parallel_for(0, grid.rounds * blocks, 32, [&](int64_t begin, int64_t end) {
    Words words;
    Values<value_t> values;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t round = i / blocks, thread = i % blocks * block_threads;
      const int64_t first = round * grid.threads * unroll + thread;
      if (first >= numel) {
        continue;
      }
      const int threads = static_cast<int>(std::min<int64_t>(block_threads, numel - first));
      const int lanes =
          static_cast<int>(std::min<int64_t>(unroll, (numel - first - 1) / grid.threads + 1));
      philox_block(start.seed, start.offset / 4 + round, thread, threads, words);
      convert(words, lanes, threads, values);
      for (int lane = 0; lane < lanes; ++lane) {
        const int64_t element = first + lane * grid.threads;
        const int count = static_cast<int>(std::min<int64_t>(threads, numel - element));
        store(element, count, values.of[lane].data());
      }
    }
  });
}

// Where a TensorIterator's n-th element lies, in bytes.
class Offsets {
 public:
  explicit Offsets(const at::TensorIteratorBase& iter, int operand = 0)
      : sizes_(iter.shape().begin(), iter.shape().end()),
        strides_(iter.strides(operand).begin(), iter.strides(operand).end()) {}

  int64_t operator()(int64_t n) const {
    int64_t offset = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      offset += n % sizes_[i] * strides_[i];
      n /= sizes_[i];
    }
    return offset;
  }

 private:
  c10::SmallVector<int64_t, 6> sizes_, strides_;
};

}  // namespace anydevice::random
