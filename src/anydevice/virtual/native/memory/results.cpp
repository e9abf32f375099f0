// What a kernel allocates on the host, at the card's addresses if it will be one of its results.
//
// Note [Results in their place]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A CPU kernel allocates its results as it allocates everything else: from PyTorch's CPU allocator,
// and nobody can distinguish a result from what the kernel frees before it returns. On a card
// results lie in the allocator's segments, come back at their addresses, and need no new pages of
// the system. So while a kernel runs, this allocator stands before the CPU's. It goes by the op: of
// the n-th allocation in a call it remembers, for each size, whether the last one became a result
// (`Places`; layers of one kind call an op in turn, each with its own sizes). One that will gets a
// free block of the device's, if there is one, uncounted until the kernel has returned it (`adopt`
// in memory.cpp); all others get plain memory. A guess that was wrong costs a copy, or the
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

// What kernels hold that may become results, by address. Their DataPtr has the address as its
// context, since oneDNN allocates by raw_allocate(), which insists on that. Few are held at a time,
// so nearly all of them lie in a slot, which takes no lock.
class Pending {
 public:
  void add(anydevice::Block* block) {
    anydevice::Block* nobody = nullptr;
    if (!slot(block->data).compare_exchange_strong(nobody, block)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      others_[block->data] = block;
    }
  }

  anydevice::Block* take(const void* data) {
    auto& its = slot(data);
    auto* block = its.load();  // another one's may end meanwhile, but its memory stays a Block's
    if (block != nullptr && block->data == data && its.compare_exchange_strong(block, nullptr)) {
      return block;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = others_.find(data);
    if (found == others_.end()) {
      return nullptr;
    }
    block = found->second;
    others_.erase(found);
    return block;
  }

 private:
  std::atomic<anydevice::Block*>& slot(const void* data) {
    return slots_[(reinterpret_cast<uint64_t>(data) >> 9) % slots_.size()];  // 512 bytes apart
  }

  std::array<std::atomic<anydevice::Block*>, 256> slots_{};
  std::mutex mutex_;
  std::unordered_map<const void*, anydevice::Block*> others_;
};

Pending& pending() {
  static auto* instance = new Pending();
  return *instance;
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
  auto* block = machine.forked ? nullptr : pending().take(data);
  if (block == nullptr) {
    return;
  }
  block->places->remove(block->place, block->size);
  of(block->device).cancel(static_cast<Block*>(block->counted));
  block->~Block();
  Slab<anydevice::Block>::give(block);
}

struct BeforeCpu final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto* running = thread.running;
    return C10_LIKELY(running == nullptr) || size == 0 ? plain_cpu_allocator()->allocate(size)
                                                       : running->allocate(size);
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
  auto* block = pending().take(bytes.get());
  if (block != nullptr) {
    bytes.release_context();
    block->places = nullptr;
  }
  return block;
}

void note_missed_result(const void* data) {
  if (thread.running != nullptr) {
    thread.running->note_missed(data);
  }
}

}  // namespace memory

Results::Results(Places& places, DeviceIndex device) : places_(places), device_(device) {
  auto& thread = memory::thread;
  if (device >= 0 && thread.counting && memory::is_caching()) {
    before_ = std::exchange(thread.running, this);
    thread_ = &thread;
  }
}

Results::~Results() {
  if (thread_ != nullptr) {
    thread_->running = before_;
  }
}

c10::DataPtr Results::allocate(size_t size) {
  const int place = allocations_++;
  const bool wanted = !returned_ && places_.has(place, size);
  memory::Block* counted =
      wanted ? memory::of(device_).reserve(size, current_stream(device_), thread_->pools[device_])
             : nullptr;
  if (counted == nullptr || !memory::CachingAllocator::is_backed(counted)) {
    if (counted != nullptr) {
      memory::of(device_).cancel(counted);
    }
    auto plain = memory::plain_cpu_allocator()->allocate(size);
    if (place < Places::most) {
      plain_[place] = {plain.get(), size};
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
  memory::pending().add(block);
  return {block->data, block->data, &memory::release, c10::kCPU};
}

void Results::note_missed(const void* data) {
  for (int place = 0; data != nullptr && place < std::min(allocations_, Places::most); ++place) {
    if (plain_[place].data == data) {
      places_.add(place, plain_[place].size);
    }
  }
}

void install_results() {
  memory::plain_cpu_allocator();
  static auto* before = new memory::BeforeCpu();
  c10::SetCPUAllocator(before, /*priority=*/255);
}

}  // namespace anydevice
