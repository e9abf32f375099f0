// The allocator at the CUDA key, in two layers: caching_allocator.h says what the card would do and
// whether it has the memory; the bytes themselves are plain host memory (none when hollow).
#include "memory.h"
#include "blocks.h"
#include "runtime/streams.h"
#include "slab.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <bit>
#include <mutex>
#include <sstream>
#include <string>

namespace anydevice {
namespace memory {
namespace {

using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;

// What PYTORCH_CUDA_ALLOC_CONF says that only a CUDA build reads.
struct CudaSettings {
  std::optional<double> memory_fraction;
  bool graph_capture_record_stream_reuse = false;
};

CudaSettings& cuda_settings() {
  static auto* instance = new CudaSettings();
  return *instance;
}

void check_register_threads(size_t count) {
  constexpr size_t most = 128;
  TORCH_CHECK_VALUE(std::has_single_bit(count),
                    "Number of register threads has to be power of 2, got ", count);
  TORCH_CHECK_VALUE(count <= most, "Number of register threads should be less than or equal to ",
                    most, ", got ", count);
}

void read_cuda_settings(const std::string& text) {
  const c10::CachingAllocator::ConfigTokenizer tokens(text);
  for (size_t i = 0; i + 2 < tokens.size(); ++i) {
    if (tokens[i] == "per_process_memory_fraction") {
      const double fraction = tokens.toDouble(i + 2);
      TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1,
                        "per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
      cuda_settings().memory_fraction = fraction;
    } else if (tokens[i] == "graph_capture_record_stream_reuse") {
      cuda_settings().graph_capture_record_stream_reuse = tokens.toBool(i + 2);
    } else if (tokens[i] == "release_lock_on_cudamalloc" ||
               tokens[i] == "pinned_use_cuda_host_register") {
      tokens.toBool(i + 2);
    } else if (tokens[i] == "pinned_num_register_threads") {
      check_register_threads(tokens.toSizeT(i + 2));
    }
  }
}

Settings current_settings() {
  Settings settings;
  settings.memory_fraction = cuda_settings().memory_fraction;
  settings.graph_capture_record_stream_reuse = cuda_settings().graph_capture_record_stream_reuse;
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

void reconfigure() {
  const auto settings = current_settings();
  for (auto& model : models) {
    if (auto* made = model.load()) {
      made->configure(settings);
    }
  }
}

// PyTorch's own parser reads PYTORCH_ALLOC_CONF, at any time. It has to know the names that only
// the CUDA build registers, and to configure the models when something changes.
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
    read_cuda_settings(text);
    reconfigure();
  };
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const char* text = std::getenv(name)) {
      return read_cuda_settings(text);
    }
  }
}

Clock clock_of(int device, int64_t stream) {
  const auto nanoseconds = [](streams::Moment moment) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(moment.time_since_epoch()).count();
  };
  const auto present = streams::now();
  return {nanoseconds(present),
          streams::any_was_busy()
              ? nanoseconds(streams::ready_at(static_cast<DeviceIndex>(device), stream))
              : 0};
}

// Each device has its own range, as the cards of one machine do, at addresses that no system uses.
uint64_t first_address(DeviceIndex device) { return (uint64_t{1} + device) << 42; }

std::atomic<bool> caching{true};
std::atomic<Historian> historian{nullptr};

}  // namespace

constinit std::array<std::atomic<CachingAllocator*>, max_gpus> models{};

CachingAllocator& make_model(DeviceIndex device) {
  static const bool listening = (listen_to_settings(), true);
  (void)listening;
  static auto* once = new std::array<std::once_flag, max_gpus>();
  std::call_once((*once)[device], [&] {
    auto* made = new CachingAllocator(machine.gpu[device].memory, current_settings(),
                                      first_address(device), host_backing());
    made->set_stream_clock(&clock_of, device);
    models[device] = made;
  });
  return *models[device];
}

constinit thread_local Thread thread;

void use_pool(DeviceIndex device, PoolId pool) { thread.pools[device] = pool; }
PoolId pool_in_use(DeviceIndex device) { return thread.pools[device]; }

void count_in_this_thread(bool on) { thread.counting = on; }

bool is_caching() { return caching.load(std::memory_order_relaxed); }
void set_caching(bool on) { caching = on; }

void set_historian(Historian heard) {
  for (DeviceIndex device = 0; device < machine.gpus; ++device) {
    of(device).set_tracing(heard != nullptr);
  }
  historian = heard;
}

// Outside the model's lock: the listener is Python, and may allocate or free in turn.
void report_history(DeviceIndex device) {
  if (auto* heard = historian.load(std::memory_order_relaxed); C10_UNLIKELY(heard != nullptr)) {
    const ErrorAside aside;
    for (const auto& trace : of(device).take_traces()) {
      heard(device, &trace);
    }
  }
}

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

void report_to_profiler(void* data, int64_t bytes, DeviceIndex device) {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    const auto stats = of(device).statistics();
    c10::reportMemoryUsageToProfiler(data, bytes, stats.allocated_bytes[0].current,
                                     stats.reserved_bytes[0].current, Device(c10::kCUDA, device));
  }
}

// What freed tensors held, which the host can have back.
void drop_free_contents() {
  for (DeviceIndex device = 0; device < max_gpus; ++device) {
    if (auto* made = if_used(device)) {
      made->drop_free_contents();
    }
  }
}

// The card would have had the memory. A program that catches this and asks for less works.
c10::DataPtr host_memory(size_t size) {
  try {
    if (host_has(size) || (drop_free_contents(), host_has(size))) {
      return plain_cpu_allocator()->allocate(size);
    }
  } catch (const c10::Error&) {  // said below
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false,
                   "CUDA out of memory: a virtual GPU's memory is the host's, which does not have ",
                   format_size(size),
                   " left. Hollow GPUs take none of it: anydevice.virtual_gpus(hollow=True).");
}

void* address_in_model(const anydevice::Block& block) {
  return reinterpret_cast<void*>(
      CachingAllocator::address(static_cast<const Block*>(block.counted)));
}

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
  need_context(device);
  if (size == 0 || !thread.counting) {
    return block;
  }
  if (C10_UNLIKELY(!is_caching())) {
    take_uncached(*block);
    return block;
  }
  while (block->counted == nullptr) {
    try {
      block->counted = of(device).allocate(size, current_stream(device), thread.pools[device]);
    } catch (const OutOfMemory& what) {
      if (!release_received()) {
        report_history(device);
        throw_out_of_memory(what, device);
      }
    }
  }
  report_history(device);
  report({Event::allocate, "alloc", static_cast<int64_t>(size), -1, device});
  return block;
}

bool is_backed(const anydevice::Block& block) {
  return block.counted && CachingAllocator::is_backed(static_cast<const Block*>(block.counted));
}

// A hollow GPU's tensors are where the card would have them, so that no two have the same address;
// behind it is nothing to read.
void* hollow_address(const anydevice::Block& block) {
  static std::atomic<uint64_t> uncounted_addresses{first_address(max_gpus)};
  return block.size == 0 ? nullptr
         : block.counted
             ? address_in_model(block)
             : reinterpret_cast<void*>(uncounted_addresses.fetch_add(round_up(block.size, 512)));
}

void* address_of(const anydevice::Block& block) {
  return block.data == nullptr && block.counted ? address_in_model(block) : block.data;
}

c10::DataPtr hand_out(OwnedBlock block) {
  void* data = machine.hollow ? hollow_address(*block) : block->data;
  const Device device(c10::kCUDA, block->device);
  if (block->counted) {
    report_to_profiler(
        data, static_cast<int64_t>(CachingAllocator::size(static_cast<Block*>(block->counted))),
        block->device);
  }
  if (data != nullptr) {
    trace_gpu([&](const auto& python) {
      python.trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(data));
    });
  }
  return {data, block.release(), &release_block, device};
}

void keep_bytes(anydevice::Block& block, c10::DataPtr bytes) {
  block.data = bytes.get();
  block.bytes = std::move(bytes);
}

// Where the model put it, if there is host memory there.
void place(anydevice::Block& block) {
  if (is_backed(block)) {
    block.data = address_in_model(block);
  } else {
    keep_bytes(block, host_memory(block.size));
  }
}

// What this thread gives back just now: a callback may ask which streams used it.
thread_local const Block* freed = nullptr;

struct Freeing {
  explicit Freeing(const Block* block) { freed = block; }
  ~Freeing() { freed = nullptr; }
  Freeing(const Freeing&) = delete;
  Freeing& operator=(const Freeing&) = delete;
};

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
  trace_gpu([&](const auto& python) {
    const Freeing freeing(counted);
    python.trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(data));
  });
  of(block.device).free(counted);
  report_history(block.device);
  report_to_profiler(data, -rounded, block.device);
  report({Event::release, "free", static_cast<int64_t>(block.size), block.device, -1});
}

}  // namespace

}  // namespace memory

namespace memory {
// The streams, one a line, that record_stream() named for the block that is given back just now.
ANYDEVICE_API const char* anydevice_memory_recorded() {
  static thread_local std::string text;
  text.clear();
  if (freed != nullptr) {
    for (const auto stream : freed->other_streams) {
      text += std::to_string(stream) + "\n";
    }
  }
  return text.c_str();
}
}  // namespace memory

void release_block(void* context) {
  if (C10_UNLIKELY(machine.forked)) {
    // A thread of the parent may have held a lock at the fork, and the child cannot use the block.
    return;
  }
  auto* block = static_cast<Block*>(context);
  if (C10_UNLIKELY(block->shared) && await_receivers(*block)) {
    return;
  }
  release_alias(*block);
  memory::give_back(*block);
  block->~Block();
  Slab<Block>::give(block);
}

c10::DataPtr allocate(size_t size, DeviceIndex device) {
  check_usable();
  if (C10_UNLIKELY(machine.gpus == 0)) {
    refuse_left_behind();
  }
  auto block = memory::take(size, device);
  if (!machine.hollow) {
    memory::place(*block);
  }
  return memory::hand_out(std::move(block));
}

// What a kernel allocated is where it belongs already; other bytes move there.
c10::DataPtr adopt(c10::DataPtr bytes, size_t size, DeviceIndex device) {
  if (auto* result = memory::take_result(bytes)) {
    memory::of(result->device).settle(static_cast<memory::Block*>(result->counted));
    memory::report_history(result->device);
    report({Event::allocate, "alloc", static_cast<int64_t>(size), -1, result->device});
    return memory::hand_out(memory::OwnedBlock(result, &release_block));
  }
  auto block = memory::take(size, device);
  if (machine.hollow) {
    return memory::hand_out(std::move(block));
  }
  if (memory::is_backed(*block)) {
    memory::note_missed_result(bytes.get());
    memory::place(*block);
    std::memcpy(block->data, bytes.get(), size);
  } else {
    memory::keep_bytes(*block, std::move(bytes));
  }
  return memory::hand_out(std::move(block));
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

}  // namespace anydevice
