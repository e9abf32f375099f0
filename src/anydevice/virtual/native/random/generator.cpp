// The CUDA generators: a seed and an offset for each device, with CUDAGeneratorImpl's semantics.
// What draws from them is in this folder's other files.
#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <array>
#include <cstring>
#include <mutex>

namespace anydevice {
namespace random {

CudaGenerator::CudaGenerator(DeviceIndex device, c10::intrusive_ptr<State> state)
    : c10::GeneratorImpl(Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
      state_(std::move(state)) {}

Philox CudaGenerator::advance(uint64_t increment) {
  const Philox start{state_->seed, state_->offset};
  state_->offset += (increment + 3) / 4 * 4;
  return start;
}

void CudaGenerator::set_current_seed(uint64_t seed) {
  state_->seed = seed;
  state_->offset = 0;
}

void CudaGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
  state_->offset = offset;
}

uint64_t CudaGenerator::get_offset() const { return state_->offset; }

uint64_t CudaGenerator::current_seed() const { return state_->seed; }

uint64_t CudaGenerator::seed() {
  const auto seed = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(seed);
  return seed;
}

c10::intrusive_ptr<c10::TensorImpl> CudaGenerator::get_state() const {
  auto tensor = at::detail::empty_cpu({2 * sizeof(uint64_t)}, at::kByte, std::nullopt, std::nullopt,
                                      std::nullopt, std::nullopt);
  auto* bytes = tensor.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &state_->seed, sizeof(uint64_t));
  std::memcpy(bytes + sizeof(uint64_t), &state_->offset, sizeof(uint64_t));
  return tensor.getIntrusivePtr();
}

void CudaGenerator::set_state(const c10::TensorImpl& tensor) {
  at::detail::check_rng_state(tensor);
  const auto size = static_cast<size_t>(tensor.numel());
  TORCH_CHECK(size == sizeof(uint64_t) || size == 2 * sizeof(uint64_t), "RNG state is wrong size");
  const auto* bytes = tensor.data_dtype_initialized<uint8_t>();
  uint64_t seed = 0, offset = 0;
  std::memcpy(&seed, bytes, sizeof(seed));
  if (size > sizeof(seed)) {
    std::memcpy(&offset, bytes + sizeof(seed), sizeof(offset));
  }
  set_current_seed(seed);
  set_offset(offset);
}

void CudaGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  auto cuda = c10::dynamic_intrusive_pointer_cast<CudaGenerator>(other);
  TORCH_CHECK(cuda, "Expected a CUDA Generator");
  state_ = cuda->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> CudaGenerator::graphsafe_get_state() const {
  return c10::make_intrusive<CudaGenerator>(device().index(), state_);
}

CudaGenerator* CudaGenerator::clone_impl() const {
  auto state = c10::make_intrusive<State>();
  state->seed = state_->seed;
  state->offset = state_->offset;
  return new CudaGenerator(device().index(), std::move(state));
}

Philox draw(const MaybeGenerator& generator, DeviceIndex device, int64_t increment) {
  auto* ours = at::get_generator_or_default<CudaGenerator>(generator, default_generator(device));
  const std::lock_guard<std::mutex> lock(ours->mutex_);
  return ours->advance(static_cast<uint64_t>(increment));
}

}  // namespace random

const at::Generator& default_generator(DeviceIndex device) {
  struct Defaults {
    std::array<std::once_flag, max_gpus> once;
    std::array<at::Generator, max_gpus> generators;
  };
  static auto* defaults = new Defaults();  // never destroyed: Python may still hold on to them
  TORCH_CHECK(device >= 0 && device < machine.gpus);
  std::call_once(defaults->once[device], [&] {
    defaults->generators[device] = at::make_generator<random::CudaGenerator>(device);
    defaults->generators[device].seed();
  });
  return defaults->generators[device];
}

at::Generator new_generator(DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < machine.gpus, "The device_index is invalid.");
  return at::make_generator<random::CudaGenerator>(device);
}

at::Generator cpu_stream(const std::optional<at::Generator>& generator, DeviceIndex device) {
  // Device -1: the results go to the host, and so does a generator of the host.
  if (generator && generator->defined() && generator->device().is_cpu()) {
    return *generator;
  }
  const auto start = random::draw(generator, device < 0 ? current_device() : device, 4);
  constexpr uint64_t odd = 0x9E3779B97F4A7C15;  // so that seeds of successive offsets are far apart
  return at::detail::createCPUGenerator(start.seed ^ (start.offset / 4 * odd));
}

}  // namespace anydevice
