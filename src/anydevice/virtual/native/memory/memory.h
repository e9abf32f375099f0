// The model of each device's memory, and what a program may set about it.
#pragma once

#include "anydevice.h"
#include "caching_allocator.h"

#include <array>

namespace anydevice {
class Results;
}

namespace anydevice::memory {

// One model for each device, made when the device is first used, and never destroyed: storages may
// outlive everything else.
extern constinit std::array<std::atomic<CachingAllocator*>, max_gpus> models;
CachingAllocator& make_model(DeviceIndex device);

inline CachingAllocator* if_used(DeviceIndex device) {
  return models[device].load(std::memory_order_acquire);
}
inline CachingAllocator& of(DeviceIndex device) {
  auto* made = if_used(device);
  return C10_LIKELY(made != nullptr) ? *made : make_model(device);
}

bool host_has(size_t size);             // as far as can be known before (host_memory.cpp)
Backing host_backing();                 // host memory at the card's addresses (host_memory.cpp)
c10::Allocator* plain_cpu_allocator();  // PyTorch's own

// memory/results.cpp: what a kernel allocates on the host, at the card's addresses if it will be a
// result. `bytes` becomes a block of the device's; null: it is not one of these.
anydevice::Block* take_result(c10::DataPtr& bytes);
void note_missed_result(const void* data);
// What holds in one thread, in one place: to find it costs as much as to read it.
struct Thread {
  Results* running = nullptr;  // see Note [Results in their place]
  bool counting = true;
  PoolId pools[max_gpus];  // {0, 0}: the common one
};
extern constinit thread_local Thread thread;

// What this thread allocates on the device comes from this pool.
void use_pool(DeviceIndex device, PoolId pool);
PoolId pool_in_use(DeviceIndex device);

// Off: what this thread allocates is not counted.
void count_in_this_thread(bool on);

// Off: each block is taken from the driver and given back to it, as PYTORCH_NO_CUDA_MEMORY_CACHING
// has it.
bool is_caching();
void set_caching(bool on);

// Hears of each action of the models; null: nobody listens.
using Historian = void (*)(int device, const Trace* trace);
void set_historian(Historian heard);
void report_history(DeviceIndex device);

}  // namespace anydevice::memory
