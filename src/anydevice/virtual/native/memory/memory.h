// The model of each device's memory.
#pragma once

#include "anydevice.h"
#include "caching_allocator.h"

namespace anydevice::memory {

CachingAllocator& of(DeviceIndex device);  // made when the device is first used
const CachingAllocator* if_used(DeviceIndex device);

void tell_history(DeviceIndex device);  // tells who records what the allocator does

bool host_has(size_t size);  // as far as can be known before

}  // namespace anydevice::memory
