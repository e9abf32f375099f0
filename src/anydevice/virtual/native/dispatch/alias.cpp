// Making aliases and undoing them. An alias shares no code path with its original: views take their
// device from the storage, so the alias has a CPU storage, kept with the bytes it stands for.
#include "alias.h"

#include "memory/lazy_clone.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <typeinfo>

namespace anydevice {
namespace {

using c10::StorageImpl;
using c10::TensorImpl;
using StoragePtr = c10::intrusive_ptr<StorageImpl>;

StoragePtr host_storage(size_t bytes, c10::DataPtr data) {
  return c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(),
                                          static_cast<int64_t>(bytes), std::move(data),
                                          c10::GetAllocator(host().type()),
                                          /*resizable=*/true);
}

StoragePtr new_alias(StorageImpl& storage) {
  return host_storage(storage.nbytes(), {storage.mutable_data(), host()});
}

// Bytes that are not ours (memory lent by another library), or that lazy clones share: those are
// copied before they are written to, and not before they are read.
StoragePtr alias_of_foreign(StorageImpl& storage) {
  auto* data = const_cast<void*>(storage.data());  // or the error that it was given
  auto* keeper = new c10::Storage(StoragePtr::reclaim_copy(&storage));
  auto let_go = [](void* context) { delete static_cast<c10::Storage*>(context); };
  return host_storage(storage.nbytes(), {data, keeper, let_go, host()});
}

// A storage that the program has resized to nothing under its tensors.
[[noreturn]] void refuse_freed() {
  constexpr uint32_t illegal_address = 700;  // cudaErrorIllegalAddress
  throw_cuda_error(illegal_address, "an illegal memory access was encountered",
                   "Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/"
                   "cuda-runtime-api/group__CUDART__TYPES.html for more information.");
}

StoragePtr alias_of(StorageImpl& storage) {
  auto* block = storage._mutable_data_ptr_no_checks().cast_context<Block>(&release_block);
  if (C10_UNLIKELY(block == nullptr)) {
    return take_block_back(storage) ? alias_of(storage) : alias_of_foreign(storage);
  }
  check_not_left_behind(*block);
  auto* alias = block->alias.load(std::memory_order_acquire);
  if (alias == nullptr) {
    auto fresh = new_alias(storage);
    if (block->alias.compare_exchange_strong(alias, fresh.get())) {
      alias = fresh.release();
    }
  }
  const auto* bytes = storage._mutable_data_ptr_no_checks().get();
  if (C10_UNLIKELY(alias->_mutable_data_ptr_no_checks().get() != bytes)) {
    alias->set_data_ptr_noswap({const_cast<void*>(bytes), host()});  // resized, and then an error
  }
  if (C10_UNLIKELY(alias->nbytes() != storage.nbytes())) {
    alias->set_nbytes(storage.nbytes());
  }
  return StoragePtr::reclaim_copy(alias);
}

void adopt_storage(StorageImpl& storage, DeviceIndex device) {
  const auto bytes = storage.nbytes();
  auto data = std::move(storage._mutable_data_ptr_no_checks());
  storage.set_data_ptr_noswap(adopt(std::move(data), bytes, device));
  storage.set_allocator(allocator());
}

// What torch keeps to itself. It changes a tensor's keys, but leaves its device as it was.
struct Inside : TensorImpl {
  static constexpr auto device_member() { return &Inside::device_opt_; }
  static constexpr auto storage_member() { return &Inside::storage_; }
  static void copy(const TensorImpl& from, TensorImpl& to) {  // `to` keeps its version
    auto version = std::move(to.*(&Inside::version_counter_));
    copy_tensor_metadata(&from, &to, std::move(version), /*allow_tensor_metadata_change=*/true);
  }
};

void change_device(TensorImpl& tensor, Device device) {
  tensor._change_backend_component_keys(device);
  tensor.*Inside::device_member() = device;
}

// A kernel resized the alias: its bytes become those of the original, and it is their alias again.
void take_bytes(StorageImpl& original, StorageImpl& alias, DeviceIndex device) {
  const auto bytes = alias.nbytes();
  auto resized = std::move(alias._mutable_data_ptr_no_checks());
  original.set_data_ptr_noswap(adopt(std::move(resized), bytes, device));
  original.set_nbytes(bytes);
  alias.set_data_ptr_noswap({original.mutable_data(), host()});
  auto* block = original._mutable_data_ptr_no_checks().cast_context<Block>(&release_block);
  if (block != nullptr) {
    block->alias.store(StoragePtr::reclaim_copy(&alias).release());
  }
}

bool on_host(const at::Tensor& tensor) { return tensor.device().type() == host().type(); }

c10::intrusive_ptr<TensorImpl> fresh_copy_of(const TensorImpl& tensor) {
  return tensor.shallow_copy_and_detach(tensor.version_counter(),
                                        /*allow_tensor_metadata_change=*/true);
}

// An inference tensor has none.
bool has_version(const TensorImpl& tensor) {
  return tensor.key_set().has(c10::DispatchKey::ADInplaceOrView);
}

template <typename Slot>
bool has_python_object(const Slot& slot) {
  if constexpr (requires { slot.load_pyobj(); }) {
    return slot.load_pyobj() != nullptr;
  } else {
    return slot._unchecked_untagged_pyobj() != nullptr;
  }
}

}  // namespace

// Note [Spare aliases]
// ~~~~~~~~~~~~~~~~~~~~
// An alias lives for one call. To allocate it, with a version counter, and to free both would be a
// tenth of a small op's cost. So each thread keeps some aliases that nothing holds any more,
// without their storages, and copies the metadata of the next tensor into them. One that Python or
// autograd attached something to is not kept.
class Spares {
 public:
  using Impl = c10::intrusive_ptr<TensorImpl>;

  Impl copy_of(const TensorImpl& tensor) {
    if (count_ == 0 || !tensor.key_set().has(c10::DispatchKey::CUDA) || !has_version(tensor)) {
      return fresh_copy_of(tensor);
    }
    auto copy = Impl::reclaim(kept_[--count_]);
    Inside::copy(tensor, *copy);
    return copy;
  }

  void take_back(at::Tensor& alias) {
    auto* impl = alias.unsafeGetTensorImpl();
    if (count_ == most || closed_ || alias.use_count() > 1 || !is_plain(*impl)) {
      return;
    }
    if (C10_UNLIKELY(count_ == 0)) {
      close_at_exit();
    }
    impl->*Inside::storage_member() = c10::Storage();
    if (C10_UNLIKELY(!impl->version_counter().unique())) {
      // The original must be alone with its version: autograd copies a new tensor that is not.
      impl->set_version_counter(c10::VariableVersion(0));
    }
    kept_[count_++] = alias.unsafeReleaseTensorImpl();
  }

  void close() {
    while (count_ > 0) {
      Impl::reclaim(kept_[--count_]);
    }
    closed_ = true;  // what other thread_locals of an ending thread hold may still come
  }

 private:
  static constexpr int most = 16;

  static void close_at_exit();
  static bool is_plain(TensorImpl& impl) {
    return impl.autograd_meta() == nullptr && impl.has_storage() && has_version(impl) &&
           !has_python_object(*impl.pyobj_slot()) && typeid(impl) == typeid(TensorImpl);
  }

  std::array<TensorImpl*, most> kept_{};
  int count_ = 0;
  bool closed_ = false;
};

// It needs no destructor, which the compiler would look after at each use.
static constinit thread_local Spares spares;

void Spares::close_at_exit() {
  struct AtExit {
    AtExit() = default;
    ~AtExit() { spares.close(); }
    AtExit(const AtExit&) = delete;
    AtExit& operator=(const AtExit&) = delete;
  };
  static const thread_local AtExit instance;
}

namespace {

at::SparseTensorImpl* sparse(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl* compressed(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// Applies `change` to the tensors that a sparse tensor is made of.
template <typename Change>
void change_members(const at::Tensor& tensor, Change change) {
  if (tensor.is_sparse()) {
    auto* impl = sparse(tensor);
    const bool coalesced = impl->coalesced();
    auto indices = impl->indices(), values = impl->values();
    change(indices);
    change(values);
    impl->set_indices_and_values_unsafe(indices, values);
    impl->set_coalesced(coalesced);
  } else {
    auto* impl = compressed(tensor);
    auto compressed_indices = impl->compressed_indices(), plain_indices = impl->plain_indices(),
         values = impl->values();
    change(compressed_indices);
    change(plain_indices);
    change(values);
    impl->set_member_tensors(compressed_indices, plain_indices, values, impl->sizes());
  }
}

bool has_members(const at::Tensor& tensor) {
  const auto layout = tensor.layout();
  return C10_UNLIKELY(layout != c10::kStrided) && layout != c10::kJagged && layout != c10::kMkldnn;
}

}  // namespace

void refuse_left_behind() {
  TORCH_CHECK(false,
              "expected a tensor on a GPU that is here, got one that outlived its virtual GPU "
              "(anydevice.virtual_gpus or anydevice.virtual.disable took it away): move it to the "
              "host with .cpu(), which still works, or use it before the GPU goes.");
}

bool is_left_behind(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || !tensor.has_storage()) {
    return false;
  }
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto* block = storage._mutable_data_ptr_no_checks().cast_context<Block>(&release_block);
  return block != nullptr && block->generation != machine.generation;
}

at::Tensor bytes_on_host(const at::Tensor& tensor) {
  auto impl = fresh_copy_of(*tensor.unsafeGetTensorImpl());
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto* block = storage._mutable_data_ptr_no_checks().cast_context<Block>(&release_block);
  impl->set_storage_keep_dtype(c10::Storage(c10::make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(), static_cast<int64_t>(storage.nbytes()),
      c10::DataPtr(block->data, c10::kCPU), nullptr, /*resizable=*/false)));
  change_device(*impl, c10::kCPU);
  return at::Tensor(impl);
}

void release_alias(Block& block) {
  if (block.alias.load(std::memory_order_relaxed) == nullptr) {
    return;
  }
  const auto owned = StoragePtr::reclaim(block.alias.exchange(nullptr));
  if (C10_UNLIKELY(owned.use_count() > 1)) {
    const bool borrowed = !block.bytes && block.data != nullptr;
    owned->set_data_ptr_noswap(borrowed ? c10::GetCPUAllocator()->clone(block.data, owned->nbytes())
                                        : std::move(block.bytes));
  }
}

// Meta's kernels still want to see the Python numbers in an expression with a tensor.
bool has_alias(const at::Tensor& tensor) {
  return tensor.defined() &&
         (tensor.is_cuda() || (machine.hollow && tensor.is_cpu() &&
                               !tensor.unsafeGetTensorImpl()->is_wrapped_number()));
}

at::Tensor Aliases::make(const at::Tensor& original) {
  at::Tensor alias(spares_.copy_of(*original.unsafeGetTensorImpl()));
  auto* impl = alias.unsafeGetTensorImpl();
  if (C10_LIKELY(impl->has_storage())) {
    if (C10_UNLIKELY(original.storage().nbytes() == 0) && impl->numel() > 0 &&
        !original._is_zerotensor()) {
      refuse_freed();
    }
    impl->set_storage_keep_dtype(
        c10::Storage(alias_of(*original.storage().unsafeGetStorageImpl())));
  }
  change_device(*impl, host());
  if (has_members(alias)) {
    change_members(alias, [&](at::Tensor& member) { member = of(member); });
  }
  return alias;
}

Aliases::Aliases() : spares_(spares) {}

Aliases::~Aliases() {
  for (auto& pair : pairs_) {
    spares_.take_back(pair.alias);
  }
}

void own_bytes(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.has_storage()) {
    auto& storage = *tensor.storage().unsafeGetStorageImpl();
    if (C10_UNLIKELY(is_copy_on_write(storage))) {
      storage.mutable_data();
    }
  }
}

at::Tensor Aliases::of(at::Tensor tensor) {
  if (!has_alias(tensor)) {
    if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      guests_.push_back(tensor);
    }
    return tensor;
  }
  constexpr size_t worth_searching = 8;  // beyond are foreach lists, which hold no tensor twice
  if (pairs_.size() <= worth_searching) {
    for (const auto& pair : pairs_) {
      if (pair.original->is_same(tensor)) {
        return pair.alias;
      }
    }
  }
  return pair_up(c10::MaybeOwned<at::Tensor>::owned(std::move(tensor)));
}

at::Tensor& Aliases::lend(const at::Tensor& tensor) {
  if (!pairs_.empty() && pairs_.front().original->is_same(tensor)) {
    return pairs_.front().alias;
  }
  return pair_up(c10::MaybeOwned<at::Tensor>::borrowed(tensor));
}

at::Tensor& Aliases::pair_up(c10::MaybeOwned<at::Tensor> original) {
  auto alias = make(*original);
  const auto* storage = alias.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  pairs_.push_back({std::move(original), std::move(alias), storage});
  return pairs_.back().alias;
}

const Aliases::Pair* Aliases::pair_of(const TensorImpl* alias) const {
  for (const auto& pair : pairs_) {
    if (pair.alias.unsafeGetTensorImpl() == alias) {
      return &pair;
    }
  }
  return nullptr;
}

const at::Tensor* Aliases::original_sharing(const StorageImpl* storage) const {
  for (const auto& pair : pairs_) {
    if (pair.alias.has_storage() && pair.alias.storage().unsafeGetStorageImpl() == storage) {
      return &*pair.original;
    }
  }
  return nullptr;
}

void Aliases::move_storage(TensorImpl& result, DeviceIndex device) {
  auto* storage = result.unsafe_storage().unsafeGetStorageImpl();
  if (storage->device().is_cuda()) {
    return;  // moved with another result that shares it
  }
  if (c10::raw::intrusive_ptr::use_count(storage) > 1) {
    if (const auto* original = original_sharing(storage)) {
      result.set_storage_keep_dtype(original->storage());
      return;
    }
  }
  adopt_storage(*storage, device);
}

void Aliases::to_device(at::Tensor& result, DeviceIndex device) {
  if (!result.defined()) {
    return;
  }
  if (result.use_count() > 1) {
    if (const auto* pair = pair_of(result.unsafeGetTensorImpl())) {
      result = *pair->original;
      return;
    }
  }
  if (!on_host(result) || (!guests_.empty() && is_guest(result))) {
    return;
  }
  auto& impl = *result.unsafeGetTensorImpl();
  if (C10_LIKELY(impl.has_storage())) {
    move_storage(impl, device);
    device = impl.unsafe_storage().device().index();
  }
  change_device(impl, Device(c10::kCUDA, device));
  if (has_members(result)) {
    change_members(result, [&](at::Tensor& member) { to_device(member, device); });
  }
}

bool Aliases::is_guest(const at::Tensor& result) const {
  return std::any_of(guests_.begin(), guests_.end(), [&](const at::Tensor& guest) {
    return guest.is_same(result) ||
           (guest.has_storage() && result.has_storage() && guest.is_alias_of(result));
  });
}

DeviceIndex Aliases::device_of(size_t i, DeviceIndex otherwise) const {
  return i < pairs_.size() && pairs_[i].original->is_cuda() ? pairs_[i].original->device().index()
                                                            : otherwise;
}

void Aliases::carry_back() {
  for (const auto& pair : pairs_) {
    if (pair.original->is_cuda()) {
      carry_back(pair);
    }
  }
}

void Aliases::carry_back(const Pair& pair) {
  if (has_members(pair.alias)) {
    carry_back_members(pair);
    return;
  }
  auto& original = *pair.original->unsafeGetTensorImpl();
  auto& alias = *pair.alias.unsafeGetTensorImpl();
  if (!alias.has_storage()) {
    return;
  }
  const auto device = pair.original->device().index();
  auto& mine = *original.unsafe_storage().unsafeGetStorageImpl();
  auto& theirs = *alias.unsafe_storage().unsafeGetStorageImpl();
  const bool set_to_another = &theirs != pair.storage;
  if (set_to_another) {
    move_storage(alias, device);
    original.set_storage_keep_dtype(alias.storage());
  } else if (theirs.nbytes() != mine.nbytes() || theirs.data() != mine.data()) {
    take_bytes(mine, theirs, device);
  }
  if (alias.is_conj() != original.is_conj()) {
    original._set_conj(alias.is_conj());
  }
  if (alias.is_neg() != original.is_neg()) {
    original._set_neg(alias.is_neg());
  }
  if (original.sizes() != alias.sizes() || original.strides() != alias.strides() ||
      original.storage_offset() != alias.storage_offset()) {
    original.set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }
}

void Aliases::carry_back_members(const Pair& pair) {
  const auto device = pair.original->device();
  auto alias = pair.alias.getIntrusivePtr();
  change_device(*alias, device);
  change_members(pair.alias, [&](at::Tensor& member) {
    if (const auto* known = pair_of(member.unsafeGetTensorImpl())) {
      carry_back(*known);
    }
    to_device(member, device.index());
  });
  pair.original->unsafeGetTensorImpl()->shallow_copy_from(alias);
}

}  // namespace anydevice
