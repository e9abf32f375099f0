// What a kernel allocates on the host, at the card's addresses if it will be one of its results.
//
// Note [Results in their place]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A CPU kernel allocates its results as it allocates everything else: from PyTorch's CPU allocator,
// and nobody can distinguish a result from what the kernel frees before it returns. On a card
// results lie in the allocator's segments, come back at their addresses, and need no new pages of
// the system. So while a kernel runs, this allocator stands before the CPU's. It goes by the op: of
// the n-th allocation in a call it remembers whether the last one became a result (`Places`). One
// that will gets a free block of the device's, if there is one, uncounted until the kernel has
// returned it
// (`adopt` in memory.cpp); all others get plain memory. A guess that was wrong costs a copy, or the
// block is given back; either way nobody sees it.
#include "results.h"
#include "blocks.h"
#include "memory.h"

#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>

namespace anydevice {
namespace memory {
namespace {

constexpr int most_places = 64;

thread_local Results* running = nullptr;

// What kernels hold that may become results, by address. Their DataPtr has the address as its
// context, since oneDNN allocates by raw_allocate(), which insists on that.
struct Pending {
  std::mutex mutex;
  std::unordered_map<const void*, anydevice::Block*> blocks;
};

Pending& pending() {
  static auto* instance = new Pending();
  return *instance;
}

anydevice::Block* take_pending(const void* data) {
  const std::lock_guard<std::mutex> lock(pending().mutex);
  const auto found = pending().blocks.find(data);
  if (found == pending().blocks.end()) {
    return nullptr;
  }
  auto* block = found->second;
  pending().blocks.erase(found);
  return block;
}

bool is_on_a_device(const void* data) {
  const auto address = reinterpret_cast<uint64_t>(data);
  return address >= uint64_t{1} << 42 && address < uint64_t{max_gpus + 1} << 42;
}

// Deletes what either allocator gave out.
void release(void* data) {
  if (!is_on_a_device(data)) {
    return plain_cpu_allocator()->raw_deleter()(data);
  }
  auto* block = machine.forked ? nullptr : take_pending(data);
  if (block == nullptr) {
    return;
  }
  block->places->fetch_and(~(uint64_t{1} << block->place), std::memory_order_relaxed);
  of(block->device).cancel(static_cast<Block*>(block->counted));
  block->~Block();
  Slab<anydevice::Block>::give(block);
}

struct BeforeCpu final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (C10_LIKELY(running == nullptr) || size == 0) {
      return plain_cpu_allocator()->allocate(size);
    }
    return running->allocate(size);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};

}  // namespace

c10::Allocator* plain_cpu_allocator() {
  static auto* plain = c10::GetCPUAllocator();
  return plain;
}

anydevice::Block* take_result(c10::DataPtr& bytes) {
  if (bytes.get_deleter() != &release || !is_on_a_device(bytes.get())) {
    return nullptr;
  }
  auto* block = take_pending(bytes.get());
  if (block != nullptr) {
    bytes.release_context();
    block->places = nullptr;
  }
  return block;
}

void note_missed_result(const void* data) {
  if (running != nullptr) {
    running->note_missed(data);
  }
}

}  // namespace memory

Results::Results(Places& places, DeviceIndex device) : places_(places), device_(device) {
  if (device >= 0 && memory::is_counting()) {
    before_ = std::exchange(memory::running, this);
    watching_ = true;
  }
}

Results::~Results() {
  if (watching_) {
    memory::running = before_;
  }
}

c10::DataPtr Results::allocate(size_t size) {
  const int place = allocations_++;
  const bool wanted = !returned_ && place < memory::most_places &&
                      (places_.load(std::memory_order_relaxed) >> place & 1) != 0;
  memory::Block* counted = wanted ? memory::of(device_).reserve(size, current_stream(device_),
                                                                memory::pool_in_use(device_))
                                  : nullptr;
  if (counted == nullptr || !memory::CachingAllocator::is_backed(counted)) {
    if (counted != nullptr) {
      memory::of(device_).cancel(counted);
    }
    auto plain = memory::plain_cpu_allocator()->allocate(size);
    if (place < static_cast<int>(plain_.size())) {
      plain_[place] = plain.get();
    }
    return plain;
  }
  auto* block = new (Slab<Block>::take()) Block;
  block->size = size;
  block->device = device_;
  block->counted = counted;
  block->places = &places_;
  block->place = place;
  block->data = reinterpret_cast<void*>(memory::CachingAllocator::address(counted));
  {
    const std::lock_guard<std::mutex> lock(memory::pending().mutex);
    memory::pending().blocks[block->data] = block;
  }
  return {block->data, block->data, &memory::release, c10::kCPU};
}

void Results::note_missed(const void* data) {
  const auto found = std::find(plain_.begin(), plain_.end(), data);
  if (data != nullptr && found != plain_.end()) {
    places_.fetch_or(uint64_t{1} << (found - plain_.begin()), std::memory_order_relaxed);
  }
}

void install_results() {
  memory::plain_cpu_allocator();
  static auto* before = new memory::BeforeCpu();
  c10::SetCPUAllocator(before, /*priority=*/255);
}

}  // namespace anydevice
