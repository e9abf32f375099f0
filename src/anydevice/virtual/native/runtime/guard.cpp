// The devices as c10 sees them: how many there are, which device and stream each thread is on.
// Work is done when it is asked for, so a stream is a number and an event a moment.
#include "anydevice.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <chrono>

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

struct Moment {
  std::chrono::steady_clock::time_point when;
};

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
    if (index < 0 || index >= max_gpus) {
      check_ordinal(index);
    }  // a GPU that was disabled still answers: autograd asks where it must not throw
    return stream(device, here().stream[index]);
  }
  c10::Stream getDefaultStream(Device device) const override { return stream(device, 0); }
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
  bool queryStream(const c10::Stream&) const override {
    refuse_while_capturing();
    return true;
  }
  void synchronizeStream(const c10::Stream& of) const override {
    wait_for_collectives();
    wait_for("cudaStreamSynchronize", of.device_index(), Wait::audibly);
  }
  bool isStreamCapturing(const c10::Stream&) const { return is_capturing(); }  // not in torch 2.11
  void synchronizeDevice(DeviceIndex device) const override {
    wait_for_collectives();
    wait_for("cudaDeviceSynchronize", device, Wait::quietly);
  }

  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Moment();
    }
    static_cast<Moment*>(*event)->when = std::chrono::steady_clock::now();
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<Moment*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {
    wait_for("cudaEventSynchronize", here().device, Wait::quietly);
  }
  double elapsedTime(void* from, void* to, DeviceIndex) const override {
    const auto span = static_cast<Moment*>(to)->when - static_cast<Moment*>(from)->when;
    return std::chrono::duration<double, std::milli>(span).count();
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

// The number of a stream says where it stands in the pool, its priority, and, by its last bit, that
// it is of the pool: the number of any other is its address.
int64_t new_stream(DeviceIndex device, int priority) {
  check_ordinal(device);
  const int level = std::clamp(-priority, 0, stream_priorities - 1);
  const int64_t place = streams_taken[device][level]++ % streams_in_pool;
  return place << 5 | (level + 1) << 1 | 1;
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
