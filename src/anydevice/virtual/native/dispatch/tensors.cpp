// Ops that make a tensor, look at it in another way, or move its bytes: these see CUDA tensors.
#include "alias.h"
#include "known.h"
#include "memory/lazy_clone.h"
#include "memory/memory.h"
#include "runtime/streams.h"
#include "system.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_lazy_clone_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Event.h>

#include <sys/mman.h>
#include <unistd.h>

namespace anydevice {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::Layout;
using c10::MemoryFormat;
using c10::ScalarType;

class OnDevice {
 public:
  explicit OnDevice(std::optional<Device> device) : before_(current_device()) {
    set_current_device(index_of(device));
  }
  ~OnDevice() { go_back_to(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  DeviceIndex before_;
};

// ---- made ----

void refuse_pinning(std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

bool fills_memory() {
  return C10_UNLIKELY(at::globalContext().deterministicAlgorithms()) &&
         at::globalContext().deterministicFillUninitializedMemory();
}

// With deterministic algorithms memory that nobody wrote to is NaN, or the largest whole number.
Tensor filled_if_asked(Tensor tensor) {
  if (fills_memory()) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

Tensor empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>,
             std::optional<Device> device, std::optional<bool> pin_memory,
             std::optional<MemoryFormat> memory_format) {
  refuse_pinning(pin_memory);
  const OnDevice there(device);
  return filled_if_asked(at::detail::empty_generic(size, allocator(),
                                                   DispatchKeySet(DispatchKey::CUDA),
                                                   c10::dtype_or_default(dtype), memory_format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype,
                     std::optional<Layout>, std::optional<Device> device,
                     std::optional<bool> pin_memory) {
  refuse_pinning(pin_memory);
  const OnDevice there(device);
  return filled_if_asked(at::detail::empty_strided_generic(
      size, stride, allocator(), DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype)));
}

Tensor efficient_zero_tensor(IntArrayRef size, std::optional<ScalarType> dtype,
                             std::optional<Layout>, std::optional<Device> device,
                             std::optional<bool>) {
  at::native::ZeroTensorAllocator no_bytes(Device(c10::kCUDA, index_of(device)));
  return at::detail::empty_generic(size, &no_bytes,
                                   DispatchKeySet({DispatchKey::CUDA, DispatchKey::ZeroTensor}),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

// ---- resized and set ----

void resize(c10::TensorImpl& tensor, IntArrayRef size, at::OptionalIntArrayRef stride) {
  const auto item = tensor.dtype().itemsize();
  const auto offset = tensor.storage_offset();
  const auto bytes = stride ? at::detail::computeStorageNbytes(size, *stride, item, offset)
                            : at::detail::computeStorageNbytesContiguous(size, item, offset);
  auto& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  if (c10::multiply_integers(size) > 0 && bytes > storage.nbytes()) {
    reallocate(storage, bytes);  // first, since there may be no memory
  }
  if (stride) {
    tensor.set_sizes_and_strides(size, *stride);
  } else {
    tensor.set_sizes_contiguous(size);
  }
}

const Tensor& resize_(const Tensor& self, IntArrayRef size,
                      std::optional<MemoryFormat> memory_format) {
  auto& impl = *self.unsafeGetTensorImpl();
  const auto bytes_before = static_cast<int64_t>(impl.unsafe_storage().nbytes());
  if (self.sizes() != size) {
    resize(impl, size, std::nullopt);
  }
  if (memory_format) {
    TORCH_CHECK(*memory_format != MemoryFormat::Preserve, "Unsupported memory format",
                *memory_format);
    impl.empty_tensor_restride(*memory_format);
  }
  if (fills_memory()) {
    at::native::fill_resize_deterministic_(self, bytes_before);
  }
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size,
                    IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_offset(offset);
  resize(impl, size, stride.data() == nullptr ? at::OptionalIntArrayRef() : stride);
  return self;
}

Tensor& set_whole_storage(Tensor& self, c10::Storage source) {
  const auto items = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {items}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (!self.is_same(source)) {
    set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
  }
  return self;
}

Tensor& set_empty(Tensor& self) {
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, allocate(0, self.device().index()),
                       allocator(), true);
  return set_storage(self, std::move(nothing), 0, {0}, {});
}

// ---- moved ----

void report_transfer(const Tensor& to, const Tensor& from, bool non_blocking) {
  const auto& on_host = to.is_cuda() ? from : to;
  const bool crosses = !on_host.is_cuda();
  if (C10_UNLIKELY(is_capturing()) && crosses) {
    TORCH_CHECK(on_host.is_pinned(),
                "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU "
                "tensor is pinned. Please use tensor.pin_memory() or allocate the tensor with "
                "pin_memory=True.");
  }
  const bool listened_to = listener.load(std::memory_order_relaxed) != nullptr;
  report({Event::transfer, "aten::copy_", static_cast<int64_t>(from.nbytes()),
          from.is_cuda() ? from.get_device() : -1, to.is_cuda() ? to.get_device() : -1,
          listened_to && crosses && on_host.is_pinned(), crosses && !non_blocking});
  if (crosses && non_blocking) {
    use_pinned(on_host, to.is_cuda() ? to.get_device() : from.get_device());
  } else if (crosses) {
    wait_for("aten::copy_", to.is_cuda() ? to.get_device() : from.get_device());
  }
}

// Has the system take pages back: they are zeros when they are next looked at. Whether it did.
// Elsewhere than on Linux pages that were advised away may keep what is in them, so new ones are
// put in their place.
bool drop_pages(uintptr_t first, uintptr_t last) {
  if (first >= last) {
    return false;
  }
  auto* begin = reinterpret_cast<void*>(first);
  if (on_linux()) {
    return madvise(begin, last - first, MADV_DONTNEED) == 0;
  }
  return mmap(begin, last - first, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1,
              0) != MAP_FAILED;
}

// What is read from a hollow GPU: zeros, which take no memory of the host until someone looks at
// them.
void read_zeros(Tensor& self) {
  auto& storage = *self.storage().unsafeGetStorageImpl();
  const bool from_malloc =
      storage.data_ptr().get_deleter() == memory::plain_cpu_allocator()->raw_deleter();
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(self.const_data_ptr()),
             end = begin + self.nbytes();
  const auto first = (begin + page - 1) / page * page, last = end / page * page;
  if (!self.is_non_overlapping_and_dense() || !from_malloc || !drop_pages(first, last)) {
    self.zero_();
    return;
  }
  std::memset(reinterpret_cast<void*>(begin), 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

// From GPUs that are gone: the bytes are still there (zeros, if the GPUs were hollow).
Tensor& bring_home(Tensor& self, const Tensor& source) {
  const auto bytes = bytes_on_host(source);
  return bytes.storage().data() == nullptr ? self.zero_() : self.copy_(bytes);
}

// The streams of two GPUs wait for each other before a copy and after it.
class BetweenGpus {
 public:
  BetweenGpus(const Tensor& to, const Tensor& from) {
    const bool watched = streams::any_was_busy() || c10::impl::GPUTrace::get_trace() != nullptr;
    if (C10_UNLIKELY(watched) && to.is_cuda() && from.is_cuda() && to.device() != from.device()) {
      streams_.emplace(stream_of(to.get_device()), stream_of(from.get_device()));
      wait(streams_->second, streams_->first);
    }
  }
  ~BetweenGpus() {
    if (streams_) {
      wait(streams_->first, streams_->second);
    }
  }
  BetweenGpus(const BetweenGpus&) = delete;
  BetweenGpus& operator=(const BetweenGpus&) = delete;

 private:
  static void wait(const c10::Stream& waiting, const c10::Stream& other) {
    c10::Event event(c10::kCUDA);
    event.record(other);
    event.block(waiting);
  }
  std::optional<std::pair<c10::Stream, c10::Stream>> streams_;
};

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  check_usable();
  const at::AutoDispatchBelowADInplaceOrView below;
  if (C10_UNLIKELY(is_left_behind(source)) && !self.is_cuda()) {
    return bring_home(self, source);
  }
  run_backward_in_the_calling_thread();
  report_transfer(self, source, non_blocking);
  const BetweenGpus meeting(self, source);
  own_bytes(self);
  Aliases aliases;
  aliases.of(self).copy_(aliases.of(source), non_blocking);
  if (machine.hollow) {
    const auto known = known::values(source);
    if (self.is_cuda()) {
      known::write(self, known);
    } else if (known) {
      self.copy_(*known);
    } else {
      read_zeros(self);
    }
  }
  return self;
}

Tensor lazy_clone(const Tensor& self) {
  if (self.storage().nbytes() == 0) {
    return self.clone();
  }
  make_shareable(*self.storage().unsafeGetStorageImpl());
  return at::native::_lazy_clone(self);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  check_usable();
  report({Event::transfer, "aten::_local_scalar_dense", static_cast<int64_t>(self.element_size()),
          self.get_device(), -1, false, true});
  wait_for("aten::_local_scalar_dense", self.get_device());
  if (machine.hollow) {
    self.storage().data();  // or the error that it was given
    if (const auto known = known::values(self)) {
      return at::_local_scalar_dense(*known);
    }
    return at::isComplexType(self.scalar_type())    ? at::Scalar(c10::complex<double>(0))
           : at::isFloatingType(self.scalar_type()) ? at::Scalar(0.0)
           : self.scalar_type() == at::kBool        ? at::Scalar(false)
                                                    : at::Scalar(0);
  }
  Aliases aliases;
  return at::_local_scalar_dense(aliases.of(self));
}

void record_stream(Tensor& self, c10::Stream stream) {
  allocator()->recordStream(self.storage().data_ptr(), stream);
}

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));

  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));

  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));

  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_lazy_clone", TORCH_FN(lazy_clone));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("record_stream", TORCH_FN(record_stream));
}

ANYDEVICE_IMPL(aten, QuantizedCUDA, m) {
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("copy_", TORCH_FN(copy_));
}

}  // namespace
}  // namespace anydevice
