// What Python calls: plain C functions through ctypes (errors as text, null: done), and as ops what
// takes or returns torch's own types.
#include "c_api.h"
#include "kernels/machine.h"
#include "memory/results.h"
#include "runtime/streams.h"

#include "dispatch/known.h"

#include <pthread.h>
#include <torch/csrc/autograd/engine.h>

#include <mutex>
#include <numeric>

namespace anydevice {
namespace {

// From here on a forked child may not use the GPUs, as CUDA's context does not survive a fork. If
// the GPUs are disabled before the fork, the child may enable GPUs itself.
void touch() {
  check_usable();
  static std::once_flag once;
  std::call_once(
      once, [] { pthread_atfork(nullptr, nullptr, [] { machine.forked = machine.gpus > 0; }); });
}

at::Generator generator(int64_t device) {
  return default_generator(static_cast<DeviceIndex>(device));
}

void resize_storage(const at::Tensor& whole, int64_t bytes) {
  reallocate(*whole.storage().unsafeGetStorageImpl(), static_cast<size_t>(bytes));
}

// The memory is free, for others to write over: from now on looking at it is this error.
void invalidate(c10::StorageImpl& storage, const char* error) {
  storage.set_data_ptr_noswap({nullptr, storage.device()});
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(error);
}

// Of a hollow GPU's tensor: see Note [Known values], dispatch/known.h.
bool is_known(const at::Tensor& tensor) { return known::values(tensor).has_value(); }

TORCH_LIBRARY_FRAGMENT(anydevice, m) {
  m.def("default_generator(int device) -> Generator?", TORCH_FN(generator));
  m.def("is_known(Tensor tensor) -> bool", TORCH_FN(is_known));
  m.def("resize_storage(Tensor whole, int bytes) -> ()", TORCH_FN(resize_storage));
}

}  // namespace
}  // namespace anydevice

using anydevice::attempt;
using anydevice::DeviceIndex;
using anydevice::machine;

ANYDEVICE_API const char* anydevice_enable(int gpus, int hollow, const anydevice::Gpu* gpu,
                                           const char* ops) {
  return attempt([&] {
    // While no device is in sight the engine decides that it needs no device threads.
    torch::autograd::Engine::get_default_engine().initialize_device_threads_pool();
    machine.hollow = hollow != 0;
    std::copy_n(gpu, gpus, machine.gpu);
    machine.gpus = gpus;
    machine.most = std::max(machine.most.load(), gpus);
    std::fill(std::begin(machine.context), std::end(machine.context), false);
    anydevice::streams::forget_busy();
    std::iota(std::begin(machine.number), std::end(machine.number), 0);
    static int generations = 0;
    machine.generation = ++generations;
    anydevice::install_guard();
    anydevice::install_hooks();
    anydevice::install_pinned_allocator();
    anydevice::install_profiler();
    anydevice::install_results();
    c10::SetAllocator(c10::kCUDA, anydevice::allocator(), /*priority=*/255);
    anydevice::register_kernels(ops);
    anydevice::kernels::set_attention_order();
    anydevice::kernels::forget_dropout_states();
  });
}

// Kernels that stay bring home the tensors that are left behind, and refuse all else.
ANYDEVICE_API const char* anydevice_disable(int keep_kernels) {
  return attempt([&] {
    if (!keep_kernels) {
      anydevice::unregister_kernels();
    }
    anydevice::remove_hooks();
    machine.gpus = machine.generation = 0;
  });
}

// From now on this process sees these of its GPUs, in this order: its ordinals count them. All are
// of a kind, so that nothing else changes.
ANYDEVICE_API void anydevice_show_only(int gpus, const int* numbers) {
  std::copy_n(numbers, gpus, machine.number);
  machine.gpus = gpus;
}

// Which of the machine's GPUs an ordinal is.
ANYDEVICE_API int anydevice_number(int device) { return machine.number[device]; }

ANYDEVICE_API const char* anydevice_invalidate(void* storage, const char* error) {
  return attempt([&] { anydevice::invalidate(*static_cast<c10::StorageImpl*>(storage), error); });
}

ANYDEVICE_API const char* anydevice_touch() { return attempt(&anydevice::touch); }

// The kernels that do not match this torch, a line for each.
ANYDEVICE_API const char* anydevice_left_out() {
  static thread_local std::string text;
  text.clear();
  for (const auto& line : anydevice::left_out()) {
    text += line + "\n";
  }
  return text.c_str();
}

ANYDEVICE_API int anydevice_forked() { return machine.forked; }

// For a forked child that only compiles: it asks for the GPUs' properties and touches no memory.
ANYDEVICE_API void anydevice_keep_gpus() { machine.forked = false; }

ANYDEVICE_API int anydevice_device_count() { return machine.gpus; }

ANYDEVICE_API int anydevice_current_device() { return anydevice::current_device(); }

ANYDEVICE_API const char* anydevice_set_current_device(int device) {
  return attempt([&] {
    anydevice::check_usable();
    anydevice::set_current_device(static_cast<DeviceIndex>(device));
    anydevice::need_context(static_cast<DeviceIndex>(device));
  });
}

ANYDEVICE_API int64_t anydevice_current_stream(int device) {
  return anydevice::current_stream(static_cast<DeviceIndex>(device));
}

ANYDEVICE_API void anydevice_set_current_stream(int device, int64_t stream) {
  anydevice::set_current_stream(static_cast<DeviceIndex>(device), stream);
}

// For torch.UntypedStorage(allocator=...), which makes no storage on `cuda` by its name.
ANYDEVICE_API const void* anydevice_allocator() {
  return static_cast<const c10::Allocator*>(anydevice::allocator());
}

ANYDEVICE_API int64_t anydevice_new_stream(int device, int priority) {
  return anydevice::new_stream(static_cast<DeviceIndex>(device), priority);
}

ANYDEVICE_API const char* anydevice_synchronize(int device) {
  return attempt([&] {
    anydevice::wait_for_collectives();
    anydevice::wait_for_device(static_cast<DeviceIndex>(device));
  });
}

ANYDEVICE_API const char* anydevice_synchronize_event(int device) {
  return attempt([&] {
    anydevice::wait_for_collectives();
    anydevice::wait_for_event(static_cast<DeviceIndex>(device));
  });
}

// Whether CUDA would have a context on the device.
ANYDEVICE_API int anydevice_has_context(int device) {
  return device >= 0 && device < machine.gpus && machine.context[device];
}

// Transfers, their bytes, synchronisations: since the process began, or the last time they were
// reset.
ANYDEVICE_API void anydevice_totals(int64_t* out) {
  const auto& totals = anydevice::totals;
  for (const auto* total :
       {&totals.transfers, &totals.transferred_bytes, &totals.synchronisations}) {
    *out++ = total->load();
  }
}

ANYDEVICE_API void anydevice_reset_totals() {
  auto& totals = anydevice::totals;
  totals.transfers = totals.transferred_bytes = totals.synchronisations = 0;
}

ANYDEVICE_API void anydevice_listen(void (*listener)(const anydevice::Report*)) {
  anydevice::listener.store(listener);
}

ANYDEVICE_API void anydevice_tell_line(void (*write)(char*, size_t)) {
  anydevice::write_line.store(write);
}
