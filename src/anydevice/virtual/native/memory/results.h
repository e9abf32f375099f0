// The allocations of a kernel while it runs: see Note [Results in their place].
#pragma once

#include "anydevice.h"

#include <array>

namespace anydevice::memory {
struct Thread;
}

namespace anydevice {

// Which of an op's allocations became results the last time: the n-th one in a call, by its size
// (a word for each n, a bit for each kind of size). To begin with, the first, of any size.
class Places {
 public:
  static constexpr int most = 8;

  bool has(int place, size_t size) const {
    return place < most && (words_[place].load(std::memory_order_relaxed) & bit(size)) != 0;
  }
  void add(int place, size_t size) { words_[place].fetch_or(bit(size), std::memory_order_relaxed); }
  void remove(int place, size_t size) {
    words_[place].fetch_and(~bit(size), std::memory_order_relaxed);
  }

 private:
  static uint64_t bit(size_t size) {  // Fibonacci hashing: sizes near each other get other bits
    return uint64_t{1} << (size * 0x9E3779B97F4A7C15U >> 58);
  }

  std::array<std::atomic<uint64_t>, most> words_{~uint64_t{0}};
};

class Results {
 public:
  Results(Places& places, DeviceIndex device);
  ~Results();
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

  void kernel_has_returned() { returned_ = true; }
  c10::DataPtr allocate(size_t size);
  void note_missed(const void* data);

 private:
  Places& places_;
  const DeviceIndex device_;
  Results* before_ = nullptr;
  memory::Thread* thread_ = nullptr;  // none: nobody asks this for memory
  bool returned_ = false;
  int allocations_ = 0;
  struct Plain {
    const void* data = nullptr;
    size_t size = 0;
  };
  std::array<Plain, Places::most> plain_{};  // what was allocated elsewhere, in order
};

void install_results();

}  // namespace anydevice
