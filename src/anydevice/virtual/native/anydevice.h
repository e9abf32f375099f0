// What the folders of the virtual GPU share.
//
// - runtime/: devices, streams and events for c10 and ATen; waiting for the device; reports.
// - dispatch/: the common kernel, which runs an op on aliases of its tensors.
// - memory/: the allocator at the CUDA key, over a model of the card's memory.
// - random/: the CUDA generators, and the ops that draw from them.
// - collectives/: a c10d backend.
// - kernels/: ops for which the common kernel alone would not do what CUDA does.
//
// Every .cpp compiles alone (make lint-native): what files share is declared in a header, and
// everything else is in an anonymous namespace. build.py compiles two units, each of which includes
// the files of some folders, since torch's headers take most of the time. So two files of one unit
// must not give the same name, or the same macro, to different things; their order does not matter.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/library.h>

#include "dispatch/registration.h"
#include "python.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#define ANYDEVICE_API extern "C" __attribute__((visibility("default")))

namespace anydevice {

using c10::Device;
using c10::DeviceIndex;

// ---- the machine (runtime/guard.cpp): set by enable(), fixed at the first use ----

constexpr int max_gpus = 16;

struct Gpu {
  int64_t memory = 0;  // bytes
  int multiprocessors = 0;
  int threads_per_multiprocessor = 0;
  int capability = 0;  // 90 is 9.0
};

// Other threads may look while one enables or disables.
struct Machine {
  std::atomic<int> gpus{0};
  std::atomic<int> most{0};         // that there have ever been
  std::atomic<int> generation{0};   // each enable() counts one up, disable() gives 0
  std::atomic<bool> hollow{false};  // storages with a size and no bytes; kernels run on Meta
  std::atomic<bool> forked{false};  // this process is a child of one that used its virtual GPUs
  Gpu gpu[max_gpus];
  std::atomic<bool> context[max_gpus] = {};  // something was done on it
  int number[max_gpus] = {};  // which of them an ordinal is, where CUDA_VISIBLE_DEVICES chooses
};

extern Machine machine;

// CUDA makes a device's context when it is first needed there, or, for pinned memory, anywhere.
inline void need_context(DeviceIndex device) {
  if (C10_UNLIKELY(!machine.context[device].load(std::memory_order_relaxed))) {
    machine.context[device] = true;
  }
}
void need_a_context();

// As the CUDA runtime reports an error: `code` is cudaError's, `help` PyTorch's line about it.
[[noreturn]] void throw_cuda_error(uint32_t code, const char* what, const char* help);

// What a kernel of the card's asserts; `why` becomes a note of the Python error.
[[noreturn]] void throw_device_assert(const std::string& why);

DeviceIndex current_device();  // of this thread
void set_current_device(DeviceIndex device);
void go_back_to(DeviceIndex device) noexcept;  // the GPUs may have gone or changed since
int64_t current_stream(DeviceIndex device);
void set_current_stream(DeviceIndex device, int64_t stream);
inline c10::Stream stream_of(DeviceIndex device) {  // the current one, as c10 has it
  return c10::Stream(c10::Stream::UNSAFE, Device(c10::kCUDA, device), current_stream(device));
}
int64_t new_stream(DeviceIndex device,
                   int priority);  // the next of the pool, as c10::cuda numbers them

inline DeviceIndex index_of(std::optional<Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

// Autograd would give each device a separate thread, which doubles OpenMP's threads and wants the
// GIL while Python is ending. Backward runs in the thread that called it instead.
inline void run_backward_in_the_calling_thread() {
  auto& state = c10::AutogradState::get_tls_state();
  if (C10_UNLIKELY(state.get_multithreading_enabled())) {
    state.set_multithreading_enabled(false);
  }
}

void install_guard();
void install_hooks();  // runtime/hooks.cpp
void remove_hooks();
void install_profiler();  // runtime/profiling.cpp

// Throws "Cannot re-initialize CUDA in forked subprocess. ..." in a forked child.
[[noreturn]] void refuse_forked();
inline void check_usable() {
  if (C10_UNLIKELY(machine.forked)) {
    refuse_forked();
  }
}

// ---- memory (memory/memory.cpp) ----

class Places;

// What stands behind every CUDA DataPtr as its context; `release_block` is the deleter.
struct Block {
  c10::DataPtr bytes;    // the host memory, where it is not the allocator's own
  void* data = nullptr;  // where the bytes are; null when hollow
  size_t size = 0;       // as asked for, in bytes
  DeviceIndex device = 0;
  int generation = machine.generation;  // of the GPUs that it was allocated on
  bool shared = false;                  // with other processes (memory/sharing.cpp)
  void* counted = nullptr;              // the allocator's own note of it
  Places* places = nullptr;             // until it is a result (memory/results.cpp)
  int place = 0;
  bool uncached = false;    // straight from the driver instead
  std::vector<char> known;  // hollow: see Note [Known values], dispatch/known.h
  std::atomic<c10::StorageImpl*> alias{nullptr};  // the same bytes as a CPU storage (dispatch.cpp)
};

// Throws unless the block's GPUs are here: they may be gone, and others in their place.
[[noreturn]] void refuse_left_behind();
inline void check_not_left_behind(const Block& block) {
  if (C10_UNLIKELY(block.generation != machine.generation)) {
    refuse_left_behind();
  }
}

void release_block(void* block);  // ends with release_alias(*block), then frees the bytes

c10::DeviceAllocator* allocator();
c10::Allocator* pinned_allocator();  // memory/pinned.cpp
void install_pinned_allocator();
bool is_pinned(const void* data);
void use_pinned(const at::Tensor& on_host, DeviceIndex device);  // by a copy that runs meanwhile
c10::DataPtr allocate(size_t bytes,
                      DeviceIndex device);  // on this device, even if another is current
// Host bytes that a CPU kernel has just made become the device's: counted, with the capacity
// checked.
c10::DataPtr adopt(c10::DataPtr bytes, size_t size, DeviceIndex device);

// As realloc: other bytes, with as much of the old ones as fits.
void reallocate(c10::StorageImpl& storage, size_t bytes);

// dispatch/alias.cpp: the alias goes with its block. If a kernel kept the alias, it inherits the
// bytes.
void release_alias(Block& block);

// memory/sharing.cpp: a block whose bytes other processes still hold waits until they let go.
bool await_receivers(Block& block);
bool release_received();  // those that receivers let go of; false: there were none

// ---- random numbers (random/generator.cpp) ----

const at::Generator& default_generator(DeviceIndex device);
at::Generator new_generator(DeviceIndex device);
// The CPU stream of a CUDA generator (the device's default one if none is given), for ops whose
// order of draws on the card is not known.
at::Generator cpu_stream(const std::optional<at::Generator>& generator, DeviceIndex device);

// ---- collectives (collectives/work.cpp) ----

// Until what was asked of other processes is done, as a synchronisation with the device does.
void wait_for_collectives();

// ---- kernels ----

// Like TORCH_LIBRARY_IMPL(ns, key, m), but run by enable(). See Note [Kernels over the common
// kernel] in dispatch/dispatch.cpp.
#define ANYDEVICE_IMPL(ns, key, m) ANYDEVICE_IMPL_(ns, key, m, C10_UID)
#define ANYDEVICE_IMPL_(ns, key, m, uid)                                                   \
  static void C10_CONCATENATE(anydevice_impl_##ns##_##key##_, uid)(::anydevice::Kernels&); \
  static const bool C10_CONCATENATE(anydevice_listed_##ns##_##key##_, uid) =               \
      ::anydevice::list_part(#ns, c10::DispatchKey::key,                                   \
                             &C10_CONCATENATE(anydevice_impl_##ns##_##key##_, uid));       \
  void C10_CONCATENATE(anydevice_impl_##ns##_##key##_, uid)(::anydevice::Kernels & m)

void register_kernels(const char* ops);  // ops.py's list, a line an op (dispatch/dispatch.cpp)
void unregister_kernels();

bool list_part(const char* ns, c10::DispatchKey key, void (*register_kernels)(Kernels&));

// The common kernel around `target`: CUDA arguments become host aliases, `target` is called with
// them, its results become CUDA tensors.
torch::CppFunction aliased(c10::KernelFunction target);

template <auto* function>
Kernel composed() {
  using Function = std::remove_pointer_t<decltype(function)>;
  return {aliased(c10::KernelFunction::makeFromUnboxedFunction(
              c10::CompileTimeFunctionPointer<Function, function>())),
          std::type_identity<Function>()};
}

// ---- waiting (runtime/waiting.cpp): the host waits for the device ----

void refuse_while_capturing();
bool is_capturing();  // a CUDA graph, in this thread

// Waits, that is: reports, warns or refuses. set_sync_debug_mode() speaks of copies and streams,
// and passes over devices and events.
void wait_for(const char* op, int device);  // for the current stream, as a copy to the host does
void wait_for_stream(const char* op, DeviceIndex device, int64_t stream);
void wait_for_device(DeviceIndex device);
void wait_for_event(DeviceIndex device);

// ---- events (runtime/events.cpp): counted always, reported only while someone listens ----

enum class Event : int { transfer = 0, synchronise = 1, allocate = 2, release = 3 };

struct Report {
  Event event;
  const char* op;  // "aten::copy_", "cudaMalloc", …
  int64_t bytes = 0;
  int source = -1;  // device index, -1: the host
  int destination = -1;
  bool pinned = false;
  bool blocking = false;
};

extern std::atomic<void (*)(const Report*)> listener;

// What one line at a program's end says of it; copies within a GPU are no transfers.
struct Totals {
  std::atomic<int64_t> transfers{0}, transferred_bytes{0}, synchronisations{0};
};

extern Totals totals;

inline void count(const Report& what) {
  if (what.event == Event::synchronise) {
    totals.synchronisations.fetch_add(1, std::memory_order_relaxed);
  } else if (what.event == Event::transfer && what.source != what.destination) {
    totals.transfers.fetch_add(1, std::memory_order_relaxed);
    totals.transferred_bytes.fetch_add(what.bytes, std::memory_order_relaxed);
  }
}

// Python's: writes " at train.py:12", the user's line, or nothing.
extern std::atomic<void (*)(char* text, size_t size)> write_line;
std::string user_line();

inline void report(const Report& what) {
  count(what);
  if (auto* heard = listener.load(std::memory_order_relaxed); C10_UNLIKELY(heard != nullptr)) {
    const ErrorAside aside;
    heard(&what);
  }
}

}  // namespace anydevice
