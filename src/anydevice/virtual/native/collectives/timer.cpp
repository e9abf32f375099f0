// DistributedDataParallel times each step with the timer of its parameters' device.
#include "anydevice.h"

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace anydevice {
namespace {

// Work is done when it is asked for, so the host's clock is the device's.
struct HostTimer final : c10d::Timer {
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto began = getTimestamp(start), ended = getTimestamp(end);
    const bool both = began && ended && *began <= *ended;
    return both ? std::optional<int64_t>(*ended - *began) : std::nullopt;
  }
};

// A CUDA build has registered its timer, which asks the driver.
const bool registered = [] {
  c10d::TimerRegistry()->Register(
      c10::kCUDA,
      [](Device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<HostTimer>(); },
      c10::REGISTRY_PREFERRED);
  return true;
}();

}  // namespace
}  // namespace anydevice
