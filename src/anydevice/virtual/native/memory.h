// The model of each device's memory.
#pragma once

#include "anydevice.h"
#include "caching_allocator.h"

namespace anydevice::memory {

CachingAllocator& of(DeviceIndex device);  // made when the device is first used

}  // namespace anydevice::memory
