// See Note [Busy streams].
#include "runtime/streams.h"
#include "c_api.h"

#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace anydevice {
namespace streams {
namespace {

struct Busy {
  std::mutex mutex;
  std::map<std::pair<DeviceIndex, int64_t>, Moment> until;
};

Busy& busy() {
  static auto* instance = new Busy();
  return *instance;
}

std::atomic<bool> was_busy{false};

double seconds(Moment moment) {
  return std::chrono::duration<double>(moment.time_since_epoch()).count();
}

Moment moment_of(double seconds) {
  return Moment(
      std::chrono::duration_cast<Moment::duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace

bool any_was_busy() { return was_busy.load(std::memory_order_relaxed); }

Moment ready_at(DeviceIndex device, int64_t stream) {
  const auto present = now();
  if (C10_LIKELY(!any_was_busy())) {
    return present;
  }
  const std::lock_guard<std::mutex> lock(busy().mutex);
  const auto found = busy().until.find({device, stream});
  return found == busy().until.end() ? present : std::max(present, found->second);
}

Moment all_ready_at(DeviceIndex device) {
  auto last = now();
  if (any_was_busy()) {
    const std::lock_guard<std::mutex> lock(busy().mutex);
    for (const auto& [stream, until] : busy().until) {
      last = stream.first == device ? std::max(last, until) : last;
    }
  }
  return last;
}

void keep_busy(DeviceIndex device, int64_t stream, Moment until) {
  if (until <= now()) {
    return;
  }
  was_busy = true;
  const std::lock_guard<std::mutex> lock(busy().mutex);
  auto& moment = busy().until[{device, stream}];
  moment = std::max(moment, until);
}

void wait_until(Moment moment) {
  if (C10_UNLIKELY(any_was_busy())) {
    std::this_thread::sleep_until(moment);
  }
}

void forget_busy() {
  const std::lock_guard<std::mutex> lock(busy().mutex);
  busy().until.clear();
  was_busy = false;
}

// The current stream is busy for so many seconds more.
ANYDEVICE_API void anydevice_sleep(double span) {
  const auto device = current_device();
  need_context(device);
  const auto stream = current_stream(device);
  keep_busy(device, stream, moment_of(seconds(ready_at(device, stream)) + span));
}

// Moments are seconds of the steady clock, as Python's time.monotonic() counts them.
ANYDEVICE_API double anydevice_now() { return seconds(now()); }
ANYDEVICE_API double anydevice_ready_at(int device, int64_t stream) {
  return seconds(ready_at(static_cast<DeviceIndex>(device), stream));
}
ANYDEVICE_API void anydevice_stream_waits(int device, int64_t stream, double until) {
  keep_busy(static_cast<DeviceIndex>(device), stream, moment_of(until));
}
ANYDEVICE_API void anydevice_wait_until(double moment) { wait_until(moment_of(moment)); }

}  // namespace streams

// What Python's events report to torch.cuda._gpu_trace.
ANYDEVICE_API void anydevice_trace_event(int what, uint64_t event, uint64_t stream) {
  trace_gpu([&](const c10::impl::PyInterpreterVTable& python) {
    switch (what) {
      case 0:
        return python.trace_gpu_event_creation(c10::kCUDA, event);
      case 1:
        return python.trace_gpu_event_deletion(c10::kCUDA, event);
      case 2:
        return python.trace_gpu_event_record(c10::kCUDA, event, stream);
      case 3:
        return python.trace_gpu_event_wait(c10::kCUDA, event, stream);
      default:
        return python.trace_gpu_event_synchronization(c10::kCUDA, event);
    }
  });
}

}  // namespace anydevice
