// Pinned host memory: PyTorch's own CachingHostAllocator over plain host memory. Nothing is locked;
// a span of memory is pinned if this file knows it.
#include "c_api.h"
#include "runtime/streams.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace anydevice {
namespace {

// Spans of host memory that count as pinned: what the allocator has, and what the program
// registered.
class Spans {
 public:
  void add(const void* start, size_t bytes, c10::DataPtr memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    spans_[static_cast<const char*>(start)] = {bytes, std::move(memory)};
  }
  bool remove(const void* start) {
    c10::DataPtr memory;  // freed after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = spans_.find(static_cast<const char*>(start));
    if (found == spans_.end()) {
      return false;
    }
    memory = std::move(found->second.memory);
    spans_.erase(found);
    return true;
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

 private:
  struct Span {
    size_t bytes = 0;
    c10::DataPtr memory;
  };
  std::mutex mutex_;
  std::map<const char*, Span> spans_;
};

Spans& spans() {
  static auto* instance = new Spans();
  return *instance;
}

using PinnedBlock = at::HostBlock<c10::Stream>;

// The parts that PyTorch leaves to each kind of device. The last two are new in torch 2.12.
struct PinnedMemory final : at::CachingHostAllocatorImpl<c10::Stream, streams::Moment> {
  void allocate_host_memory(size_t size, void** data) override {
    const Timed timed(*this, stats_.host_alloc_time);
    auto memory = c10::GetCPUAllocator()->allocate(size);
    *data = memory.get();
    spans().add(*data, size, std::move(memory));
  }
  void free_block(PinnedBlock* block) override {
    const Timed timed(*this, stats_.host_free_time);
    spans().remove(block->ptr_);
  }
  void record_stream(std::optional<std::vector<streams::Moment>>& events,
                     c10::Stream stream) override {
    events->push_back(streams::ready_at(stream.device_index(), stream.id()));
  }
  bool query_event(streams::Moment& event) override { return event <= streams::now(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  virtual c10::Stream get_current_stream() const { return stream_of(current_device()); }
  virtual bool stream_is_capturing(c10::Stream) const { return is_capturing(); }

 private:
  class Timed {
   public:
    Timed(PinnedMemory& memory, at::DurationStat& spent) : memory_(memory), spent_(spent) {}
    ~Timed() {
      const auto span = streams::now() - start_;
      const std::lock_guard<std::mutex> lock(memory_.stats_.timing_mutex_);
      spent_.increase(std::chrono::duration_cast<std::chrono::microseconds>(span).count());
    }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    PinnedMemory& memory_;
    at::DurationStat& spent_;
    streams::Moment start_ = streams::now();
  };
};

void release_pinned(void* block);

struct PinnedAllocator final : at::CachingHostAllocatorInterface<PinnedMemory, &release_pinned> {
  c10::DataPtr allocate(size_t bytes) override {
    check_usable();
    need_a_context();
    return CachingHostAllocatorInterface::allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
};

PinnedAllocator& pinned() {
  static auto* instance = new PinnedAllocator();
  return *instance;
}

// In a forked child a thread that only the parent has may hold the lock.
void release_pinned(void* block) {
  if (!machine.forked) {
    pinned().free(block);
  }
}

c10::MempoolId_t pool_id(int64_t first, int64_t second) {
  return {static_cast<uint64_t>(first), static_cast<uint64_t>(second)};
}

}  // namespace

c10::Allocator* pinned_allocator() { return &pinned(); }

bool is_pinned(const void* data) { return !machine.forked && spans().holds(data); }

void use_pinned(const at::Tensor& on_host, DeviceIndex device) {
  if (!on_host.has_storage()) {
    return;
  }
  const auto& data = on_host.storage().data_ptr();
  if (data.get_deleter() == &release_pinned) {
    pinned().record_event(data.get(), data.get_context(), stream_of(device));
  }
}

void install_pinned_allocator() { at::setHostAllocator(c10::kCUDA, &pinned(), /*priority=*/255); }

// For torch._C._cuda_cudaHostAllocator().
ANYDEVICE_API void* anydevice_pinned_allocator() { return pinned_allocator(); }

// current, peak, allocated and freed of the blocks, their bytes, the requests and their bytes; then
// total, max, min and count of the microseconds spent to get memory and to give it back.
ANYDEVICE_API const char* anydevice_pinned_stats(int64_t* out) {
  return attempt([&] {
    const auto stats = pinned().get_stats();
    for (const auto& stat :
         {stats.allocations, stats.allocated_bytes, stats.active_requests, stats.active_bytes}) {
      for (int64_t figure : {stat.current, stat.peak, stat.allocated, stat.freed}) {
        *out++ = figure;
      }
    }
    for (const auto& spent : {stats.host_alloc_time, stats.host_free_time}) {
      for (int64_t figure : {spent.total, spent.max, spent.min, spent.count}) {
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

// What a capture pins comes from the graph's pool.
ANYDEVICE_API const char* anydevice_pinned_begin_pool(int64_t first, int64_t second) {
  return attempt([&] {
    pinned().begin_allocate_to_pool(pool_id(first, second),
                                    [](const c10::Stream&) { return is_capturing(); });
  });
}
ANYDEVICE_API const char* anydevice_pinned_end_pool(int64_t first, int64_t second) {
  return attempt([&] { pinned().end_allocate_to_pool(pool_id(first, second)); });
}
ANYDEVICE_API const char* anydevice_pinned_release_pool(int64_t first, int64_t second) {
  return attempt([&] { pinned().release_pool(pool_id(first, second)); });
}

// cudaHostRegister() and its undoing: CUDA's error code.
ANYDEVICE_API int anydevice_pinned_register(uint64_t start, uint64_t bytes) {
  constexpr int invalid_value = 1, already_registered = 712;
  const auto* data = reinterpret_cast<const void*>(start);
  if (data == nullptr || bytes == 0) {
    return invalid_value;
  }
  if (spans().holds(data)) {
    return already_registered;
  }
  at::globalContext().lazyInitDevice(c10::kCUDA);  // before, torch takes nothing for pinned
  spans().add(data, bytes, {});
  return 0;
}
ANYDEVICE_API int anydevice_pinned_unregister(uint64_t start) {
  constexpr int not_registered = 713;
  return spans().remove(reinterpret_cast<const void*>(start)) ? 0 : not_registered;
}

}  // namespace anydevice
