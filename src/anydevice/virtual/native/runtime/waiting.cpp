// Where the host waits for the device: reported, named by set_sync_debug_mode(), and refused while
// a CUDA graph is captured.
#include "anydevice.h"

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

void wait_for(const char* op, int device, Wait how) {
  refuse_while_capturing();
  const int mode = how == Wait::quietly ? 0 : sync_debug_mode.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(mode != 0)) {
    TORCH_CHECK(mode == 1, "called a synchronizing CUDA operation");
    TORCH_WARN("called a synchronizing CUDA operation");
  }
  report({Event::synchronise, op, 0, device});
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
