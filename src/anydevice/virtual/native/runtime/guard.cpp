// The devices as c10 sees them: how many there are, which device and stream each thread is on.
// Work is done when it is asked for, so a stream is a number and an event a moment.
#include "runtime/streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

namespace anydevice {

Machine machine;

namespace {

// The device and the streams that a thread is on. Other GPUs are other devices: back to the first.
struct Place {
  int generation = 0;
  DeviceIndex device = 0;
  int64_t stream[max_gpus] = {};
};

Place& here() {
  static constinit thread_local Place place;
  if (C10_UNLIKELY(place.generation != machine.generation)) {
    place = Place{machine.generation};
  }
  return place;
}

constexpr int streams_in_pool = 32;  // for each device and priority, taken in turn
constexpr int stream_priorities = 4;
std::atomic<uint32_t> streams_taken[max_gpus][stream_priorities];

void check_ordinal(DeviceIndex device) {
  if (C10_LIKELY(device >= 0 && device < machine.gpus)) {
    return;
  }
  if (machine.gpus == 0) {
    refuse_left_behind();
  }
  constexpr int invalid_device = 101;  // cudaErrorInvalidDevice
  throw_cuda_error(invalid_device, "invalid device ordinal",
                   "GPU device may be out of range, do you have enough GPUs?");
}

struct Recorded {
  streams::Moment when;
  DeviceIndex device;
};

uintptr_t handle(const void* event) { return reinterpret_cast<uintptr_t>(event); }

uint64_t handle(const c10::Stream& stream) { return static_cast<uint64_t>(stream.id()); }

void check_stream_index(DeviceIndex device) {
  TORCH_CHECK(device < machine.most, "Device index value ", static_cast<int>(device),
              " is out of index range [0, ", machine.gpus.load(), ")");
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(machine.forked ? 0 : machine.gpus.load());
  }

  Device getDevice() const override { return {c10::kCUDA, here().device}; }
  void setDevice(Device device) const override {
    if (device.has_index() && machine.gpus > 0) {  // views of what outlived its GPU come here too
      set_current_device(device.index());
    }
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) {
      go_back_to(device.index());
    }
  }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream stream(Device device, int64_t id) const {
    return c10::Stream(c10::Stream::UNSAFE, Device(c10::kCUDA, index_of(device)), id);
  }
  c10::Stream getStream(Device device) const override {
    run_backward_in_the_calling_thread();  // the engine asks before it chooses a thread
    const auto index = index_of(device);
    check_stream_index(index);  // a GPU that was disabled still answers: autograd may not fail here
    return stream(device, here().stream[index]);
  }
  c10::Stream getDefaultStream(Device device) const override {
    check_stream_index(index_of(device));
    return stream(device, 0);
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -stream_priorities : 0);
  }
  c10::Stream getNewStream(Device device, int priority) const override {
    return stream(device, new_stream(index_of(device), priority));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    auto& current = here().stream[to.device_index()];
    return stream(to.device(), std::exchange(current, to.id()));
  }
  void* getStreamNativeHandle(const c10::Stream to) const override {
    return reinterpret_cast<void*>(to.id());
  }
  bool queryStream(const c10::Stream& of) const override {
    refuse_while_capturing();
    if (C10_LIKELY(!streams::any_was_busy())) {
      return true;
    }
    const auto ready = streams::ready_at(of.device_index(), of.id());
    return ready <= streams::now();
  }
  void synchronizeStream(const c10::Stream& of) const override {
    wait_for_collectives();
    wait_for_stream("cudaStreamSynchronize", of.device_index(), of.id());
  }
  bool isStreamCapturing(const c10::Stream&) const { return is_capturing(); }  // not in torch 2.11
  void synchronizeDevice(DeviceIndex device) const override {
    wait_for_collectives();
    wait_for_device(device);
  }

  void record(void** event, const c10::Stream& on, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Recorded{{}, on.device_index()};
      trace_gpu(
          [&](const auto& python) { python.trace_gpu_event_creation(c10::kCUDA, handle(*event)); });
    }
    need_context(on.device_index());
    static_cast<Recorded*>(*event)->when = streams::ready_at(on.device_index(), on.id());
    trace_gpu([&](const auto& python) {
      python.trace_gpu_event_record(c10::kCUDA, handle(*event), handle(on));
    });
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    if (event != nullptr) {
      trace_gpu(
          [&](const auto& python) { python.trace_gpu_event_deletion(c10::kCUDA, handle(event)); });
    }
    delete static_cast<Recorded*>(event);
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event == nullptr) {
      return;
    }
    if (streams::any_was_busy()) {
      streams::keep_busy(waiting.device_index(), waiting.id(), static_cast<Recorded*>(event)->when);
    }
    trace_gpu([&](const auto& python) {
      python.trace_gpu_event_wait(c10::kCUDA, handle(event), handle(waiting));
    });
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Recorded*>(event)->when <= streams::now();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      trace_gpu([&](const auto& python) {
        python.trace_gpu_event_synchronization(c10::kCUDA, handle(event));
      });
      streams::wait_until(static_cast<Recorded*>(event)->when);
    }
    wait_for_event(here().device);
  }
  double elapsedTime(void* from, void* to, DeviceIndex) const override {
    const auto &first = *static_cast<Recorded*>(from), &last = *static_cast<Recorded*>(to);
    if (first.device != last.device) {
      constexpr uint32_t invalid_handle = 400;  // cudaErrorInvalidResourceHandle
      throw_cuda_error(
          invalid_handle, "invalid resource handle",
          "Search for `cudaErrorInvalidResourceHandle' in https://docs.nvidia.com/cuda/"
          "cuda-runtime-api/group__CUDART__TYPES.html for more information.");
    }
    return std::chrono::duration<double, std::milli>(last.when - first.when).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator()->recordStream(data, stream);
  }
};

}  // namespace

void throw_cuda_error(uint32_t code, const char* what, const char* help) {
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, static_cast<int32_t>(code),
      std::string("CUDA error: ") + what + "\n" + help +
          "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
          "stacktrace below might be incorrect.\n"
          "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
          "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n");
}

DeviceIndex current_device() { return here().device; }

void set_current_device(DeviceIndex device) {
  check_ordinal(device);
  here().device = device;
}

void go_back_to(DeviceIndex device) noexcept {
  if (device < machine.gpus) {
    here().device = device;
  }
}

int64_t current_stream(DeviceIndex device) {
  return here().stream[device < 0 ? here().device : device];
}

void set_current_stream(DeviceIndex device, int64_t stream) { here().stream[device] = stream; }

namespace {

// The number of a stream says where it stands in the pool, its priority, and, by its last bit, that
// it is of the pool: the number of any other is its address.
int64_t stream_number(int64_t place, int level) { return place << 5 | (level + 1) << 1 | 1; }

// A card makes all streams of its pool when the first one is asked for.
void trace_streams_of(int level) {
  trace_gpu([&](const auto& python) {
    for (int64_t place = 0; place < streams_in_pool; ++place) {
      python.trace_gpu_stream_creation(c10::kCUDA,
                                       static_cast<uint64_t>(stream_number(place, level)));
    }
  });
}

}  // namespace

int64_t new_stream(DeviceIndex device, int priority) {
  check_ordinal(device);
  need_context(device);
  const int level = std::clamp(-priority, 0, stream_priorities - 1);
  const auto taken = streams_taken[device][level]++;
  if (taken == 0) {
    trace_streams_of(level);
  }
  return stream_number(taken % streams_in_pool, level);
}

void need_a_context() {
  for (int device = 0; device < machine.gpus; ++device) {
    if (machine.context[device].load(std::memory_order_relaxed)) {
      return;
    }
  }
  need_context(current_device());
}

namespace {
thread_local std::string note;  // of the error that this thread has raised last
}

void throw_device_assert(const std::string& why) {
  constexpr uint32_t assertion = 710;  // cudaErrorAssert
  note = why;
  throw_cuda_error(assertion, "device-side assert triggered",
                   "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
                   "group__CUDART__TYPES.html for more information.");
}

// The note, once.
ANYDEVICE_API const char* anydevice_take_note() {
  static thread_local std::string taken;
  taken = std::exchange(note, {});
  return taken.c_str();
}

void refuse_forked() {
  TORCH_CHECK(false,
              "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
              "you must use "
              "the 'spawn' start method");
}

// It stays for good: autograd ends the process where a tensor on CUDA is left and no guard.
void install_guard() {
  static const auto* guard = new Guard();
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kCUDA)].store(guard);
}

}  // namespace anydevice
