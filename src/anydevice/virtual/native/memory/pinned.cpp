// Host memory that remembers being pinned, counted as PyTorch's CachingHostAllocator counts it.
// Nothing is locked and nothing kept: only the answers to is_pinned() and host_memory_stats()
// matter.
#include "c_api.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/llvmMathExtras.h>

#include <map>
#include <mutex>

namespace anydevice {
namespace {

struct PinnedSpan {
  size_t bytes = 0;
  c10::DataPtr memory;
};

void release_pinned(void* data);

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    check_usable();
    auto memory = c10::GetCPUAllocator()->allocate(bytes);
    auto* data = memory.get();
    if (data == nullptr) {
      return memory;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    count_taken(bytes);
    spans_[static_cast<const char*>(data)] = {bytes, std::move(memory)};
    return {data, data, &release_pinned, c10::kCPU};
  }

  void release(void* data) {
    c10::DataPtr memory;  // freed after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = spans_.find(static_cast<const char*>(data));
    memory = std::move(found->second.memory);
    count_freed(found->second.bytes);
    spans_.erase(found);
  }

  bool holds(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = spans_.upper_bound(static_cast<const char*>(data));
    if (after == spans_.begin()) {
      return false;
    }
    const auto& [start, span] = *--after;
    return static_cast<const char*>(data) < start + span.bytes;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void* data, void*, c10::Stream) override { return holds(data); }
  void begin_allocate_to_pool(c10::MempoolId_t, std::function<bool(c10::Stream)>) override {}
  void end_allocate_to_pool(c10::MempoolId_t) override {}
  void release_pool(c10::MempoolId_t) override {}

  void empty_cache() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [block, number] : waiting_) {
      stats_.allocations.decrease(number);
      stats_.allocated_bytes.decrease(number * block);
    }
    waiting_.clear();
  }
  at::HostStats get_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : counted()) {
      stat->reset_accumulated();
    }
  }
  void reset_peak_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : counted()) {
      stat->reset_peak();
    }
  }

 private:
  // Blocks are powers of two; a freed one waits for the next of its size.
  void count_taken(size_t bytes) {
    const auto block = static_cast<int64_t>(c10::llvm::PowerOf2Ceil(bytes));
    if (auto& waiting = waiting_[block]; waiting > 0) {
      --waiting;
    } else {
      stats_.allocations.increase(1);
      stats_.allocated_bytes.increase(block);
    }
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(block);
  }
  void count_freed(size_t bytes) {
    const auto block = static_cast<int64_t>(c10::llvm::PowerOf2Ceil(bytes));
    ++waiting_[block];
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(block);
  }
  std::array<c10::CachingAllocator::Stat*, 4> counted() {
    return {&stats_.allocations, &stats_.allocated_bytes, &stats_.active_requests,
            &stats_.active_bytes};
  }

  std::mutex mutex_;
  std::map<const char*, PinnedSpan> spans_;
  std::map<int64_t, int64_t> waiting_;
  at::HostStats stats_;
};

PinnedMemory& pinned() {
  static auto* instance = new PinnedMemory();
  return *instance;
}

// In a forked child a thread that only the parent has may hold the lock.
void release_pinned(void* data) {
  if (!machine.forked) {
    pinned().release(data);
  }
}

}  // namespace

c10::Allocator* pinned_allocator() { return &pinned(); }

bool is_pinned(const void* data) { return !machine.forked && pinned().holds(data); }

void install_pinned_allocator() { at::setHostAllocator(c10::kCUDA, &pinned(), /*priority=*/255); }

// For torch._C._cuda_cudaHostAllocator().
ANYDEVICE_API void* anydevice_pinned_allocator() { return pinned_allocator(); }

// current, peak, allocated and freed of the blocks, their bytes, the requests and their bytes.
ANYDEVICE_API const char* anydevice_pinned_stats(int64_t* out) {
  return attempt([&] {
    const auto stats = pinned().get_stats();
    for (const auto& stat :
         {stats.allocations, stats.allocated_bytes, stats.active_requests, stats.active_bytes}) {
      for (int64_t figure : {stat.current, stat.peak, stat.allocated, stat.freed}) {
        *out++ = figure;
      }
    }
  });
}

ANYDEVICE_API const char* anydevice_pinned_reset_peak() {
  return attempt([&] { pinned().reset_peak_stats(); });
}
ANYDEVICE_API const char* anydevice_pinned_reset_accumulated() {
  return attempt([&] { pinned().reset_accumulated_stats(); });
}
ANYDEVICE_API const char* anydevice_pinned_empty_cache() {
  return attempt([&] { pinned().empty_cache(); });
}

}  // namespace anydevice
