// The blocks of storages that lazy clones share, by their address.
#include "lazy_clone.h"

#include <c10/core/impl/COW.h>

#include <mutex>
#include <unordered_map>

namespace anydevice {
namespace {

struct Aside {
  std::mutex mutex;
  std::unordered_map<const void*, void*> blocks;
};

Aside& aside() {
  static auto* instance = new Aside();
  return *instance;
}

void* take_from_aside(const void* data) {
  const std::lock_guard<std::mutex> lock(aside().mutex);
  const auto found = aside().blocks.find(data);
  if (found == aside().blocks.end()) {
    return nullptr;
  }
  auto* block = found->second;
  aside().blocks.erase(found);
  return block;
}

void release_from_aside(void* data) {
  if (C10_UNLIKELY(machine.forked)) {
    return;
  }
  if (auto* block = take_from_aside(data)) {
    release_block(block);
  }
}

}  // namespace

bool is_copy_on_write(const c10::StorageImpl& storage) {
  return c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
}

void make_shareable(c10::StorageImpl& storage) {
  auto& bytes = storage._mutable_data_ptr_no_checks();
  if (bytes.get_deleter() != &release_block) {
    return;
  }
  auto* data = bytes.get();
  const auto device = bytes.device();
  {
    const std::lock_guard<std::mutex> lock(aside().mutex);
    aside().blocks[data] = bytes.release_context();
  }
  storage.set_data_ptr_noswap({data, data, &release_from_aside, device});
}

bool take_block_back(c10::StorageImpl& storage) {
  auto& bytes = storage._mutable_data_ptr_no_checks();
  if (bytes.get_deleter() != &release_from_aside) {
    return false;
  }
  auto* data = bytes.get();
  const auto device = bytes.device();
  auto* block = take_from_aside(data);
  bytes.release_context();
  storage.set_data_ptr_noswap({data, block, &release_block, device});
  return true;
}

}  // namespace anydevice
