// The allocator at the CUDA key, in two layers: caching_allocator.h says what the card would do and
// whether it has the memory; the bytes themselves are plain host memory (none when hollow).
#include "memory.h"
#include "blocks.h"
#include "c_api.h"
#include "slab.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>

namespace anydevice {
namespace memory {
namespace {

using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;

Settings current_settings() {
  Settings settings;
  settings.max_split_size = Config::max_split_size();
  settings.max_non_split_rounding = Config::max_non_split_rounding_size();
  settings.large_segment_size = Config::large_segment_size();
  settings.garbage_collection_threshold = Config::garbage_collection_threshold();
  settings.expandable_segments = Config::use_expandable_segments();
  for (size_t i = 0; i < settings.roundup_power2_divisions.size(); ++i) {
    settings.roundup_power2_divisions[i] = Config::roundup_power2_divisions(kMiB << i);
  }
  return settings;
}

// One model for each device, made when the device is first used, and never destroyed: storages may
// outlive everything else.
struct Models {
  std::array<std::once_flag, max_gpus> once;
  std::array<std::atomic<CachingAllocator*>, max_gpus> made{};
};

Models& models() {
  static auto* instance = new Models();
  return *instance;
}

void reconfigure() {
  const auto settings = current_settings();
  for (auto& model : models().made) {
    if (auto* made = model.load()) {
      made->configure(settings);
    }
  }
}

// PyTorch's own parser reads PYTORCH_ALLOC_CONF, at any time. It has to know the names that only
// the CUDA build registers, and to tell the models when something changes.
void listen_to_settings() {
  auto& keys = Config::getMutableKeys();
  keys.insert({"backend", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
               "graph_capture_record_stream_reuse", "pinned_reserve_segment_size_mb",
               "pinned_num_register_threads", "per_process_memory_fraction",
               "pinned_free_catch_all", "throw_on_cudamalloc_oom"});
  auto& hook = Config::getConfigParserHook();
  hook = [before = hook](const std::string& text) {
    if (before) {
      before(text);
    }
    reconfigure();
  };
}

// Each device has a range of its own, as the cards of one machine do, where no system puts
// anything.
uint64_t first_address(DeviceIndex device) { return (uint64_t{1} + device) << 42; }

}  // namespace

CachingAllocator& of(DeviceIndex device) {
  static const bool listening = (listen_to_settings(), true);
  (void)listening;
  auto& all = models();
  std::call_once(all.once[device], [&] {
    all.made[device] =
        new CachingAllocator(machine.gpu[device].memory, current_settings(), first_address(device));
  });
  return *all.made[device];
}

const CachingAllocator* if_used(DeviceIndex device) { return models().made[device].load(); }

namespace {

std::string format_size(size_t size) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed;
  if (size <= 1024) {
    text << size << " bytes";
  } else if (size <= kMiB) {
    text << static_cast<double>(size) / 1024 << " KiB";
  } else if (size <= 1024 * kMiB) {
    text << static_cast<double>(size) / static_cast<double>(kMiB) << " MiB";
  } else {
    text << static_cast<double>(size) / static_cast<double>(1024 * kMiB) << " GiB";
  }
  return text.str();
}

[[noreturn]] void throw_out_of_memory(const OutOfMemory& what, DeviceIndex device) {
  const auto allowed = what.allowed ? format_size(*what.allowed) + " allowed; " : std::string();
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_size(what.tried),
      ". GPU ", static_cast<int>(device), " has a total capacity of ", format_size(what.total),
      " of which ", format_size(what.free),
      " is free. Including non-PyTorch memory, this process has ",
      format_size(what.total - what.free), " memory in use. ", allowed, "Of the allocated memory ",
      format_size(what.allocated), " is allocated by PyTorch, and ",
      format_size(what.reserved - what.allocated), " is reserved by PyTorch but unallocated.",
      " If reserved but unallocated memory is large try setting",
      " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
      "  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
      "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)");
}

void tell_profiler(void* data, int64_t bytes, DeviceIndex device) {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    const auto stats = of(device).statistics();
    c10::reportMemoryUsageToProfiler(data, bytes, stats.allocated_bytes[0].current,
                                     stats.reserved_bytes[0].current, Device(c10::kCUDA, device));
  }
}

// The card would have had the memory. Who catches an error and asks for less is served here, too.
c10::DataPtr host_memory(size_t size) {
  try {
    if (host_has(size)) {
      return c10::GetCPUAllocator()->allocate(size);
    }
  } catch (const c10::Error&) {  // said below
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false,
                   "CUDA out of memory: a virtual GPU's memory is the host's, which does not have ",
                   format_size(size),
                   " left. Hollow GPUs take none of it: anydevice.virtual_gpus(hollow=True).");
}

thread_local PoolId pool_in_use[max_gpus];  // {0, 0}: the common one
thread_local bool uncounted = false;
std::atomic<bool> caching{true};

std::atomic<void (*)(int, const Trace*)> historian{nullptr};

}  // namespace

// Outside the model's lock: who listens is Python, and may allocate or free in turn.
void tell_history(DeviceIndex device) {
  if (auto* tell = historian.load(std::memory_order_relaxed); C10_UNLIKELY(tell != nullptr)) {
    const ErrorAside aside;
    for (const auto& trace : of(device).take_traces()) {
      tell(device, &trace);
    }
  }
}

namespace {

using OwnedBlock = std::unique_ptr<anydevice::Block, decltype(&release_block)>;

void take_uncached(anydevice::Block& block) {
  constexpr uint32_t out_of_memory = 2;  // cudaErrorMemoryAllocation
  if (!of(block.device).take_uncached(block.size)) {
    throw_cuda_error(
        out_of_memory, "out of memory",
        "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
        "group__CUDART__TYPES.html for more information.");
  }
  block.uncached = true;
}

// Takes the memory on the card, or says that there is none.
OwnedBlock take(size_t size, DeviceIndex device) {
  constexpr size_t one_exabyte = size_t{1} << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, size < one_exabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  OwnedBlock block(new (Slab<anydevice::Block>::take()) anydevice::Block, &release_block);
  block->size = size;
  block->device = device;
  if (size == 0 || uncounted) {
    return block;
  }
  if (C10_UNLIKELY(!caching.load(std::memory_order_relaxed))) {
    take_uncached(*block);
    return block;
  }
  while (block->counted == nullptr) {
    try {
      block->counted = of(device).allocate(size, current_stream(device), pool_in_use[device]);
    } catch (const OutOfMemory& what) {
      if (!release_received()) {
        tell_history(device);
        throw_out_of_memory(what, device);
      }
    }
  }
  tell_history(device);
  report({Event::allocate, "alloc", static_cast<int64_t>(size), -1, device});
  return block;
}

// A hollow GPU's tensors are where the card would have them, so that no two have the same address;
// behind it is nothing to read.
void* address_of(const anydevice::Block& block) {
  if (!machine.hollow || block.size == 0) {
    return block.bytes.get();
  }
  static std::atomic<uint64_t> uncounted_addresses{first_address(max_gpus)};
  return reinterpret_cast<void*>(
      block.counted ? CachingAllocator::address(static_cast<const Block*>(block.counted))
                    : uncounted_addresses.fetch_add(round_up(block.size, 512)));
}

c10::DataPtr hand_out(OwnedBlock block, c10::DataPtr bytes) {
  block->bytes = std::move(bytes);
  void* data = address_of(*block);
  const Device device(c10::kCUDA, block->device);
  if (block->counted) {
    tell_profiler(data,
                  static_cast<int64_t>(CachingAllocator::size(static_cast<Block*>(block->counted))),
                  block->device);
  }
  return {data, block.release(), &release_block, device};
}

void give_back(anydevice::Block& block) {
  if (C10_UNLIKELY(block.uncached)) {
    of(block.device).give_back_uncached(block.size);
  }
  if (!block.counted) {
    return;
  }
  auto* counted = static_cast<Block*>(block.counted);
  const auto rounded = static_cast<int64_t>(CachingAllocator::size(counted));
  void* data = address_of(block);
  of(block.device).free(counted);
  tell_history(block.device);
  tell_profiler(data, -rounded, block.device);
  report({Event::release, "free", static_cast<int64_t>(block.size), block.device, -1});
}

}  // namespace

// What this thread allocates on the device comes from this pool.
ANYDEVICE_API void anydevice_memory_use_pool(int device, int64_t first, int64_t second) {
  pool_in_use[device] = {first, second};
}

ANYDEVICE_API void anydevice_memory_pool_in_use(int device, int64_t* first, int64_t* second) {
  std::tie(*first, *second) = pool_in_use[device];
}

// What this thread allocates is not counted: a graph's replay works in memory that it has already.
ANYDEVICE_API void anydevice_memory_count(int counted) { uncounted = counted == 0; }

ANYDEVICE_API int anydevice_memory_is_caching() { return caching; }
ANYDEVICE_API void anydevice_memory_set_caching(int on) { caching = on != 0; }

ANYDEVICE_API const char* anydevice_memory_tell_history(void (*tell)(int device,
                                                                     const Trace* trace)) {
  return attempt([&] {
    for (DeviceIndex device = 0; device < machine.gpus; ++device) {
      of(device).set_tracing(tell != nullptr);
    }
    historian = tell;
  });
}

}  // namespace memory

void release_block(void* context) {
  if (C10_UNLIKELY(machine.forked)) {
    return;  // a thread of the parent may have held a lock at the fork; the child cannot use it
             // anyway
  }
  auto* block = static_cast<Block*>(context);
  if (C10_UNLIKELY(block->shared) && await_receivers(*block)) {
    return;
  }
  memory::give_back(*block);
  release_alias(*block);
  block->~Block();
  Slab<Block>::give(block);
}

c10::DataPtr allocate(size_t size, DeviceIndex device) {
  check_usable();
  if (C10_UNLIKELY(machine.gpus == 0)) {
    refuse_left_behind();
  }
  auto block = memory::take(size, device);
  return memory::hand_out(std::move(block),
                          machine.hollow ? c10::DataPtr() : memory::host_memory(size));
}

c10::DataPtr adopt(c10::DataPtr bytes, size_t size, DeviceIndex device) {
  return memory::hand_out(memory::take(size, device), std::move(bytes));
}

void reallocate(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  auto other = allocate(bytes, storage.device().index());
  const auto kept = std::min(bytes, storage.nbytes());
  if (kept > 0 && !machine.hollow) {
    std::memcpy(other.get(), storage.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(other));
  storage.set_nbytes(bytes);
}

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
      if (auto* made = memory::models().made[device].load()) {
        made->empty_cache({static_cast<int64_t>(pool.first), static_cast<int64_t>(pool.second)});
        memory::tell_history(device);
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
