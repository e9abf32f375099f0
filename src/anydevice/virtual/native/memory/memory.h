// The model of each device's memory, and what a program may set about it.
#pragma once

#include "anydevice.h"
#include "caching_allocator.h"

namespace anydevice::memory {

CachingAllocator& of(DeviceIndex device);  // made when the device is first used
CachingAllocator* if_used(DeviceIndex device);

bool host_has(size_t size);  // as far as can be known before (host_memory.cpp)

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
