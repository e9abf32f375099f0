// The allocations of a kernel while it runs: see Note [Results in their place].
#pragma once

#include "anydevice.h"

#include <array>

namespace anydevice::memory {
struct Thread;
}

namespace anydevice {

// Which of an op's allocations became results the last time; to begin with, the first.
using Places = std::atomic<uint64_t>;

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
  std::array<const void*, 8> plain_{};
};

void install_results();

}  // namespace anydevice
