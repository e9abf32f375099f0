// What Python calls, through ctypes: plain C types, errors as text (null: done).
#include "anydevice.h"

#include <torch/csrc/autograd/engine.h>

namespace anydevice {
namespace {

template <typename Work>
const char* attempt(Work work) {
  static thread_local std::string error;
  try {
    work();
    return nullptr;
  } catch (const c10::Error& raised) {
    error = raised.what_without_backtrace();
  } catch (const std::exception& raised) {
    error = raised.what();
  }
  return error.c_str();
}

}  // namespace
}  // namespace anydevice

using anydevice::attempt;
using anydevice::machine;

ANYDEVICE_API const char* anydevice_enable(
    int gpus, int hollow, const anydevice::Gpu* gpu, const char* ops) {
  return attempt([&] {
    // With no device in sight the engine starts no device threads, now and for good.
    torch::autograd::Engine::get_default_engine().initialize_device_threads_pool();
    machine.hollow = hollow != 0;
    std::copy_n(gpu, gpus, machine.gpu);
    machine.gpus = gpus;
    anydevice::install_guard();
    anydevice::install_hooks();
    c10::SetAllocator(c10::kCUDA, anydevice::allocator(), /*priority=*/255);
    anydevice::register_kernels(ops);
  });
}

ANYDEVICE_API void anydevice_disable() {
  anydevice::unregister_kernels();
  anydevice::remove_hooks();
  anydevice::remove_guard();
  machine.gpus = 0;
}

ANYDEVICE_API int anydevice_current_device() { return anydevice::current_device(); }

ANYDEVICE_API const char* anydevice_set_current_device(int device) {
  return attempt([&] { anydevice::set_current_device(static_cast<c10::DeviceIndex>(device)); });
}

ANYDEVICE_API int64_t anydevice_current_stream(int device) {
  return anydevice::current_stream(static_cast<c10::DeviceIndex>(device));
}

ANYDEVICE_API void anydevice_listen(void (*listener)(const anydevice::Report*)) {
  anydevice::listener.store(listener);
}
