// What ATen asks of CUDA through at::detail::getCUDAHooks(): devices, generators, pinned memory.
// That object is made once, during `import torch`; ours takes its place by taking over its vtable.
#include "anydevice.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace anydevice {
namespace {

// Of cuFFT, for each GPU.
std::array<std::atomic<int64_t>, max_gpus>& most_plans() {
  static auto* sizes = [] {
    auto* made = new std::array<std::atomic<int64_t>, max_gpus>();
    std::fill(made->begin(), made->end(), 4096);
    return made;
  }();
  return *sizes;
}

bool initialised = false;

// No data members: only then can its vtable serve the object that is already there.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {
    check_usable();
    initialised = true;
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !machine.forked && machine.gpus > 0; }
  bool hasCUDA() const override { return isAvailable(); }
  bool hasCUDART() const override { return true; }
  bool hasMAGMA() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return 91900; }
  long versionRuntimeCuDNN() const override { return 91900; }
  long versionCUDART() const override { return 13000; }
  double batchnormMinEpsilonCuDNN() const override { return 0; }
  bool hasCuSOLVER() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex device) const override {
    TORCH_CHECK(device >= 0 && device < machine.gpus,
                "hasPrimaryContext expects a valid device index, but got device_index=",
                static_cast<int>(device));
    return machine.context[device];
  }
  std::string showConfig() const override { return ""; }

  DeviceIndex deviceCount() const override {
    return static_cast<DeviceIndex>(machine.forked ? 0 : machine.gpus.load());
  }
  int getNumGPUs() const override { return deviceCount(); }
  DeviceIndex current_device() const override { return anydevice::current_device(); }
  DeviceIndex getCurrentDevice() const override { return anydevice::current_device(); }
  void setCurrentDevice(DeviceIndex device) const override { set_current_device(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    const auto before = anydevice::current_device();
    set_current_device(device);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? anydevice::current_device() : exchangeDevice(device);
  }
  void deviceSynchronize(DeviceIndex device) const override {
    wait_for_collectives();
    wait_for_device(device);
  }

  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device < 0 ? anydevice::current_device() : device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return new_generator(device < 0 ? anydevice::current_device() : device);
  }

  Device getDeviceFromPtr(void*) const override {
    return {c10::kCUDA, anydevice::current_device()};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return allocator(); }

  // cuFFT's plans are made anew each time; how many may be kept is remembered.
  int64_t cuFFTGetPlanCacheMaxSize(DeviceIndex device) const override {
    return most_plans()[device];
  }
  void cuFFTSetPlanCacheMaxSize(DeviceIndex device, int64_t size) const override {
    TORCH_CHECK(size >= 0, "cuFFT plan cache size must be non-negative, but got ", size);
    most_plans()[device] = size;
  }
  int64_t cuFFTGetPlanCacheSize(DeviceIndex) const override { return 0; }
  void cuFFTClearPlanCache(DeviceIndex) const override {}
};

void* vtable_before = nullptr;

void* hooks_object() { return const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks()); }

}  // namespace

// Whether torch has called Hooks::init(), which it does once in a process.
ANYDEVICE_API int anydevice_initialised() { return initialised; }

void install_hooks() {
  static const auto* ours = new Hooks();
  std::memcpy(&vtable_before, hooks_object(), sizeof(void*));
  std::memcpy(hooks_object(), static_cast<const void*>(ours), sizeof(void*));
}

void remove_hooks() {
  if (vtable_before != nullptr) {
    std::memcpy(hooks_object(), &vtable_before, sizeof(void*));
  }
}

}  // namespace anydevice
