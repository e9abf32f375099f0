// When streams are done with what they were asked to do.
//
// Note [Busy streams]
// ~~~~~~~~~~~~~~~~~~~
// Work on a virtual GPU is done when it is asked for, so a stream is always ready: with one
// exception. torch.cuda._sleep() keeps a stream busy for a time, as it keeps a card's, and programs
// use it to look at what is not done yet. So a stream has a moment from which on it is ready; an
// event takes it over when it is recorded, a stream that waits for the event from there, and who
// synchronises waits until then. Values are right at once nevertheless.
#pragma once

#include "anydevice.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>

#include <chrono>

namespace anydevice {

namespace streams {

using Moment = std::chrono::steady_clock::time_point;

inline Moment now() { return std::chrono::steady_clock::now(); }
Moment ready_at(DeviceIndex device, int64_t stream);  // now, unless it is busy
Moment all_ready_at(DeviceIndex device);
void keep_busy(DeviceIndex device, int64_t stream, Moment until);
bool any_was_busy();  // since the process began
void wait_until(Moment moment);
void forget_busy();

}  // namespace streams

// Reports to torch.cuda._gpu_trace what happened, if torch._C._activate_gpu_trace() was called.
template <typename Callback>
void trace_gpu(Callback callback) {
  const auto* interpreter = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(interpreter != nullptr)) {
    const ErrorAside aside;
    callback(**interpreter);
  }
}

}  // namespace anydevice
