// PyTorch's own face of the allocator: what c10 and torch.accelerator ask of the one at the CUDA
// key.
#include "memory.h"

namespace anydevice {
namespace {

c10::CachingAllocator::StatArray as_torch(const memory::Stats3& ours) {
  c10::CachingAllocator::StatArray theirs;
  for (size_t i = 0; i < ours.size(); ++i) {
    theirs[i].current = ours[i].current;
    theirs[i].peak = ours[i].peak;
    theirs[i].allocated = ours[i].allocated;
    theirs[i].freed = ours[i].freed;
  }
  return theirs;
}

memory::CachingAllocator& checked(DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < machine.gpus, "Invalid device argument ",
              static_cast<int>(device), ": did you call init?");
  return memory::of(device);
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    return anydevice::allocate(size, current_device());
  }

  void copy_data(void* to, const void* from, size_t size) const override {
    if (!machine.hollow) {
      default_copy_data(to, from, size);
    }
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t pool) override {
    for (DeviceIndex device = 0; device < max_gpus; ++device) {
      if (auto* made = memory::if_used(device)) {
        made->empty_cache({static_cast<int64_t>(pool.first), static_cast<int64_t>(pool.second)});
        memory::report_history(device);
      }
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &release_block) {
      return;
    }
    const auto* block = static_cast<Block*>(data.get_context());
    if (block->counted) {
      memory::of(block->device)
          .record_stream(static_cast<memory::Block*>(block->counted), stream.id());
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    const auto ours = checked(device).statistics();
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocation = as_torch(ours.allocation);
    stats.segment = as_torch(ours.segment);
    stats.active = as_torch(ours.active);
    stats.inactive_split = as_torch(ours.inactive_split);
    stats.allocated_bytes = as_torch(ours.allocated_bytes);
    stats.reserved_bytes = as_torch(ours.reserved_bytes);
    stats.active_bytes = as_torch(ours.active_bytes);
    stats.inactive_split_bytes = as_torch(ours.inactive_split_bytes);
    stats.requested_bytes = as_torch(ours.requested_bytes);
    stats.oversize_allocations = as_torch({ours.oversize_allocations, {}, {}})[0];
    stats.oversize_segments = as_torch({ours.oversize_segments, {}, {}})[0];
    stats.num_alloc_retries = ours.num_alloc_retries;
    stats.num_ooms = ours.num_ooms;
    stats.num_sync_all_streams = ours.num_sync_all_streams;
    stats.num_device_alloc = ours.num_device_alloc;
    stats.num_device_free = ours.num_device_free;
    stats.max_split_size = ours.max_split_size;
    return stats;
  }

  void resetAccumulatedStats(DeviceIndex device) override { checked(device).reset_accumulated(); }
  void resetPeakStats(DeviceIndex device) override { checked(device).reset_peak(); }

  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return checked(device).free_and_total();
  }
};

}  // namespace

c10::DeviceAllocator* allocator() {
  static auto* instance = new Allocator();
  return instance;
}

}  // namespace anydevice
