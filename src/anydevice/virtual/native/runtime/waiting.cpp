// Where the host waits for the device: reported, named by set_sync_debug_mode(), and refused while
// a CUDA graph is captured.
#include "runtime/streams.h"

namespace anydevice {
namespace {

std::atomic<int> sync_debug_mode{0};  // 1 warns, 2 raises

enum class Capture { none, running, broken };
thread_local Capture capture = Capture::none;

}  // namespace

bool is_capturing() { return capture != Capture::none; }

void refuse_while_capturing() {
  if (C10_LIKELY(capture == Capture::none)) {
    return;
  }
  capture = Capture::broken;
  constexpr uint32_t unsupported = 900;
  throw_cuda_error(unsupported, "operation not permitted when stream is capturing",
                   "Search for `cudaErrorStreamCaptureUnsupported' in https://docs.nvidia.com/cuda/"
                   "cuda-runtime-api/group__CUDART__TYPES.html for more information.");
}

void wait_for(const char* op, int device) {
  const auto there = device < 0 ? current_device() : static_cast<DeviceIndex>(device);
  wait_for_stream(op, there, current_stream(there));
}

void wait_for_stream(const char* op, DeviceIndex device, int64_t stream) {
  refuse_while_capturing();
  const int mode = sync_debug_mode.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(mode != 0)) {
    TORCH_CHECK(mode == 1, "called a synchronizing CUDA operation");
    TORCH_WARN("called a synchronizing CUDA operation");
  }
  trace_gpu([&](const auto& python) {
    python.trace_gpu_stream_synchronization(c10::kCUDA, static_cast<uint64_t>(stream));
  });
  if (C10_UNLIKELY(streams::any_was_busy())) {
    streams::wait_until(streams::ready_at(device, stream));
  }
  report({Event::synchronise, op, 0, device});
}

void wait_for_device(DeviceIndex device) {
  refuse_while_capturing();
  need_context(device < 0 ? current_device() : device);
  trace_gpu([](const auto& python) { python.trace_gpu_device_synchronization(c10::kCUDA); });
  if (C10_UNLIKELY(streams::any_was_busy())) {
    streams::wait_until(streams::all_ready_at(device < 0 ? current_device() : device));
  }
  report({Event::synchronise, "cudaDeviceSynchronize", 0, device});
}

void wait_for_event(DeviceIndex device) {
  refuse_while_capturing();
  report({Event::synchronise, "cudaEventSynchronize", 0, device});
}

ANYDEVICE_API int anydevice_sync_debug_mode() { return sync_debug_mode; }
ANYDEVICE_API void anydevice_set_sync_debug_mode(int mode) { sync_debug_mode = mode; }

ANYDEVICE_API int anydevice_capturing() { return is_capturing(); }
ANYDEVICE_API void anydevice_begin_capture() { capture = Capture::running; }
// Whether every call during the capture was one that can be captured.
ANYDEVICE_API int anydevice_end_capture() {
  return std::exchange(capture, Capture::none) != Capture::broken;
}

}  // namespace anydevice
