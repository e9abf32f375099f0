// Sending a storage to another process: its bytes move to memory that both map, once and for good,
// and the sender keeps them until every receiver has let go.
#include "anydevice.h"
#include "shared_file.h"

#include <map>
#include <mutex>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace anydevice {
namespace {

constexpr size_t alignment = 512;          // of what the caching allocator hands out
constexpr size_t small = size_t{1} << 20;  // up to here several share a file: descriptors are few
constexpr size_t small_file = size_t{2} << 20;

using Receivers = std::atomic<int64_t>;
static_assert(Receivers::is_always_lock_free);

// A part of a file: the number of receivers, then the bytes (none when hollow).
struct Piece {
  std::shared_ptr<SharedFile> file;
  size_t offset;
  size_t size;

  Receivers& receivers() const { return *reinterpret_cast<Receivers*>(file->at(offset)); }
  size_t data_offset() const { return offset + alignment; }
  char* data() const { return file->at(data_offset()); }
};

struct Sent {
  std::mutex mutex;
  std::map<const char*, Piece*> pieces;  // by their end
  std::shared_ptr<SharedFile> for_small;
  size_t used = 0;               // of that
  std::vector<Block*> awaiting;  // released here, but not yet by their receivers
};

Sent& sent() {
  static auto* instance = new Sent();
  return *instance;
}

void forget_piece(void* context) {
  const std::unique_ptr<Piece> piece(static_cast<Piece*>(context));
  const std::lock_guard<std::mutex> lock(sent().mutex);
  sent().pieces.erase(piece->data() + piece->size);
}

Piece* new_piece(size_t size) {
  const auto bytes = machine.hollow ? 0 : size;
  const auto whole = alignment + (bytes + alignment - 1) / alignment * alignment;
  auto& all = sent();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Piece piece{nullptr, 0, bytes};
  if (whole > small) {
    piece.file = SharedFile::make(whole);
  } else {
    if (!all.for_small || all.used + whole > small_file) {
      all.for_small = SharedFile::make(small_file);
      all.used = 0;
    }
    piece.file = all.for_small;
    piece.offset = all.used;
    all.used += whole;
  }
  auto* made = new Piece(std::move(piece));
  all.pieces[made->data() + bytes] = made;
  return made;
}

Piece* piece_of(const Block& block) { return block.bytes.cast_context<Piece>(&forget_piece); }

// Memory that another storage lent (through DLPack) may be of a piece as well.
Piece* piece_around(const void* data) {
  auto& all = sent();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto after = all.pieces.upper_bound(static_cast<const char*>(data));
  return after != all.pieces.end() && data >= after->second->data() ? after->second : nullptr;
}

void move_bytes(c10::StorageImpl& storage, Block& block) {
  wait_for_collectives();  // which write where the bytes are now
  auto* piece = new_piece(storage.nbytes());
  std::memcpy(piece->data(), storage.data(), piece->size);
  release_alias(block);
  block.bytes = {machine.hollow ? nullptr : piece->data(), piece, &forget_piece, c10::kCPU};
  block.data = block.bytes.get();
  block.shared = true;
  if (!machine.hollow) {
    auto* context = storage._mutable_data_ptr_no_checks().release_context();
    storage.set_data_ptr_noswap({piece->data(), context, &release_block, storage.device()});
  }
}

Piece& shared_piece(c10::StorageImpl& storage) {
  check_usable();
  TORCH_CHECK(!storage.received_cuda(),
              "Attempted to send CUDA tensor received from another process; this is not currently "
              "supported. Consider cloning before sending.");
  auto* block = storage._mutable_data_ptr_no_checks().cast_context<Block>(&release_block);
  if (block == nullptr) {
    auto* piece = piece_around(storage.data());
    TORCH_CHECK(piece,
                "expected a tensor whose memory is PyTorch's own, got one that another library "
                "lent: clone it before sending it to another process.");
    return *piece;
  }
  if (!block->shared) {
    move_bytes(storage, *block);
  }
  return *piece_of(*block);
}

c10::StorageImpl& storage_of(const at::Tensor& whole) {
  return *whole.storage().unsafeGetStorageImpl();
}

// ---- the sender's side

using Address =
    std::tuple<std::string, int64_t, int64_t>;  // file, where the bytes are, the receivers

Address send(const at::Tensor& whole) {
  release_received();
  auto& storage = storage_of(whole);
  auto& piece = shared_piece(storage);
  piece.receivers() += 1;
  const auto data = machine.hollow ? piece.data_offset() : piece.file->offset_of(storage.data());
  return {piece.file->handle(), static_cast<int64_t>(data), static_cast<int64_t>(piece.offset)};
}

// Something else is going to keep the address, so the bytes move now and not later.
void settle(const at::Tensor& tensor) {
  auto& storage = storage_of(tensor);
  auto* block = storage._mutable_data_ptr_no_checks().cast_context<Block>(&release_block);
  if (block && !block->shared && storage.nbytes() > 0 && !machine.hollow) {
    move_bytes(storage, *block);
  }
}

// ---- the receiver's side

struct Received {
  std::shared_ptr<SharedFile> file;
  size_t receivers;
  bool held = true;
};

struct AllReceived {
  std::mutex mutex;
  std::unordered_set<Received*> storages;
};

AllReceived& all_received() {
  static auto* instance = new AllReceived();
  return *instance;
}

void let_go(const SharedFile& file, size_t receivers) {
  *reinterpret_cast<Receivers*>(file.at(receivers)) -= 1;
}

void let_go(Received& received) {
  if (std::exchange(received.held, false)) {
    let_go(*received.file, received.receivers);
  }
}

void forget_received(void* context) {
  if (machine.forked) {
    return;
  }
  const std::unique_ptr<Received> received(static_cast<Received*>(context));
  const std::lock_guard<std::mutex> lock(all_received().mutex);
  all_received().storages.erase(received.get());
  let_go(*received);
}

// A process that ends frees few of its tensors. The memory stays mapped for those still in use.
void let_go_of_all() {
  if (machine.forked) {
    return;
  }
  const std::lock_guard<std::mutex> lock(all_received().mutex);
  for (auto* received : all_received().storages) {
    let_go(*received);
  }
}

at::Tensor receive(std::string handle, int64_t offset, int64_t receivers, int64_t size,
                   int64_t device) {
  check_usable();
  auto file = SharedFile::open(handle);
  const Device there(c10::kCUDA, static_cast<DeviceIndex>(device));
  // Where no process has anything.
  constexpr uint64_t received_addresses = uint64_t{1} << 47;
  void* data = machine.hollow
                   ? reinterpret_cast<void*>(received_addresses |
                                             reinterpret_cast<uintptr_t>(file->at(offset)))
                   : file->at(offset);
  auto* received = new Received{std::move(file), static_cast<size_t>(receivers)};
  {
    const std::lock_guard<std::mutex> lock(all_received().mutex);
    all_received().storages.insert(received);
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), size,
      c10::DataPtr(data, received, &forget_received, there), allocator(),
      /*resizable=*/false);
  storage->set_received_cuda(true);
  auto whole = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(there));
  return whole.set_(c10::Storage(std::move(storage)));
}

void release_unreceived(std::string handle, int64_t receivers) {
  let_go(*SharedFile::open(handle), static_cast<size_t>(receivers));
}

TORCH_LIBRARY_FRAGMENT(anydevice, m) {
  m.def("send_storage(Tensor whole) -> (str, int, int)", TORCH_FN(send));
  m.def("settle_storage(Tensor whole) -> ()", TORCH_FN(settle));
  m.def("receive_storage(str handle, int offset, int receivers, int size, int device) -> Tensor",
        TORCH_FN(receive));
  m.def("release_unreceived(str handle, int receivers) -> ()", TORCH_FN(release_unreceived));
  m.def("let_go_of_all() -> ()", TORCH_FN(let_go_of_all));
  m.def("release_received() -> bool", TORCH_FN(release_received));
}

}  // namespace

bool await_receivers(Block& block) {
  const auto* piece = piece_of(block);
  const bool held = piece->receivers() > 0;
  if (held) {
    const std::lock_guard<std::mutex> lock(sent().mutex);
    sent().awaiting.push_back(&block);
  }
  return held;
}

bool release_received() {
  std::vector<Block*> free;
  {
    auto& all = sent();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto held = std::partition(all.awaiting.begin(), all.awaiting.end(), [](Block* block) {
      return piece_of(*block)->receivers() > 0;
    });
    free.assign(held, all.awaiting.end());
    all.awaiting.erase(held, all.awaiting.end());
  }
  for (auto* block : free) {
    release_block(block);
  }
  return !free.empty();
}

}  // namespace anydevice
