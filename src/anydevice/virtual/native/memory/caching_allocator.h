// The bookkeeping of PyTorch's CUDACachingAllocator for one device: the same blocks, segments and
// statistics over a simulated card. Its addresses have no bytes behind them; no torch is needed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace anydevice::memory {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// What PYTORCH_ALLOC_CONF can change, with PyTorch's defaults.
struct Settings {
  size_t max_split_size = kUnlimited;
  size_t max_non_split_rounding = 20 * kMiB;
  size_t large_segment_size = 20 * kMiB;
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  bool graph_capture_record_stream_reuse = false;
  std::optional<double> memory_fraction;
  // Divisions between two powers of 2, for sizes from 1 MiB to 64 GiB; 0 or 1 is "no rounding".
  std::array<size_t, 16> roundup_power2_divisions{};
};

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(int64_t amount) {  // a negative amount is a decrease
    current += amount;
    peak = std::max(peak, current);
    (amount > 0 ? allocated : freed) += std::abs(amount);
  }
  void reset_accumulated() { allocated = freed = 0; }
  void reset_peak() { peak = current; }
};

using Stats3 = std::array<Stat, 3>;  // both pools, the small pool, the large pool

struct Statistics {
  Stats3 allocation, segment, active, inactive_split;
  Stats3 allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  Stat oversize_allocations, oversize_segments;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0;
  int64_t num_device_alloc = 0, num_device_free = 0;
  int64_t max_split_size = 0;

  std::array<Stats3*, 9> by_pool();
};

// A pool apart from the others: a CUDA graph's, or a torch.cuda.MemPool. {0, 0} is the common pool.
using PoolId = std::pair<int64_t, int64_t>;
constexpr PoolId kCommonPool{0, 0};

struct PoolOptions {
  bool no_split = false;    // a segment is one block for good
  bool use_on_oom = false;  // others may take from it before they give up
};

// What torch.cuda.memory._record_memory_history() records, in the order of its names (history.py).
enum class Action : int {
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  snapshot,
  oom
};

struct Trace {
  Action action;
  uint64_t address;  // of `oom`: what the card has left
  size_t size;
  int64_t stream;
  PoolId pool;
};

// Thrown when the card cannot give the memory: the figures of PyTorch's message.
struct OutOfMemory {
  size_t tried, total, free;
  std::optional<size_t> allowed;  // set by a memory fraction
  size_t allocated, reserved;
};

// Nanoseconds from some moment on: the present, and when a stream will be done with its work.
struct Clock {
  int64_t now, done;
};
using StreamClock = Clock (*)(int device, int64_t stream);

struct Pool;
struct PrivatePool;
struct Block;
struct ExpandableSegment;

struct BlockInfo {
  uint64_t address;
  size_t size, requested;
  bool allocated, active;
};

struct SegmentInfo {
  uint64_t address;
  int64_t stream;
  PoolId pool;
  size_t total = 0, allocated = 0, active = 0, requested = 0;
  bool large, expandable;
  std::vector<BlockInfo> blocks;
};

// Puts host memory behind a range of the card's addresses, takes it away, or lets its contents go;
// null where the addresses are all that there is.
struct Backing {
  bool (*map)(uint64_t address, size_t size) = nullptr;
  void (*unmap)(uint64_t address, size_t size) = nullptr;
  void (*drop)(uint64_t address, size_t size) = nullptr;
};

// The card's memory as its driver hands it out. Addresses increase while there are any left, so
// that the order of segments is the order in which they were asked for.
class Driver {
 public:
  Driver(size_t total, uint64_t first_address, Backing backing)
      : total_(total),
        first_address_(first_address),
        next_address_(first_address),
        backing_(backing) {}
  bool take(size_t size);
  void give_back(size_t size) { used_ -= size; }
  uint64_t reserve_addresses(size_t size);
  void give_back_addresses(uint64_t address) { reserved_.erase(address); }
  const Backing& backing() const { return backing_; }
  size_t total() const { return total_; }
  size_t free() const { return used_ < total_ ? total_ - used_ : 0; }
  void resize(size_t total) { total_ = total; }
  void set_outside(size_t bytes);  // the context, other processes, library workspaces

 private:
  size_t total_, used_ = 0, outside_ = 0;
  uint64_t first_address_, next_address_;
  std::map<uint64_t, size_t> reserved_;
  Backing backing_;
};

class CachingAllocator {
 public:
  explicit CachingAllocator(size_t total, Settings settings = {},
                            uint64_t first_address = uint64_t{1} << 42, Backing backing = {});
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Throws OutOfMemory.
  Block* allocate(size_t requested, int64_t stream, PoolId pool = kCommonPool);
  void free(Block* block);

  // A free block for what may become a tensor, or null: nothing is counted before it is settled.
  Block* reserve(size_t requested, int64_t stream, PoolId pool = kCommonPool);
  void settle(Block* block);
  void cancel(Block* block);

  void record_stream(Block* block, int64_t stream);
  void begin_capture();  // or another use of a pool apart: see Note [Private pools]
  void end_capture();
  void set_stream_clock(StreamClock clock, int device);  // without one, streams are always done
  void drop_free_contents();        // of blocks that nobody uses: the host needs the memory
  bool take_uncached(size_t size);  // straight from the driver, nothing counted
  void give_back_uncached(size_t size);
  void empty_cache(PoolId pool = kCommonPool);

  void retain_pool(PoolId pool, PoolOptions options = {});
  void release_pool(PoolId pool);
  int pool_uses(PoolId pool) const;
  std::map<PoolId, Stats3> reserved_by_pool() const;

  void set_tracing(bool on);
  std::vector<Trace> take_traces();  // what happened since the last call

  void configure(const Settings& settings);
  void set_memory_fraction(double fraction);
  double memory_fraction() const;
  void set_capacity(size_t total, size_t outside);
  std::pair<size_t, size_t> free_and_total() const;

  Statistics statistics() const;
  void reset_accumulated();
  void reset_peak();
  int64_t highest() const;  // most bytes ever allocated at a time, in spite of resets
  std::vector<SegmentInfo> snapshot(PoolId pool = kCommonPool);  // the common one: of all

  static uint64_t address(const Block* block);
  static bool is_backed(const Block* block);
  static size_t size(const Block* block);
  static size_t round_size(size_t requested, const Settings& settings);
  static size_t segment_size(size_t rounded, const Settings& settings);

 private:
  struct Request;
  using Counted = Stats3 Statistics::*;

  void count(Counted stat, const Pool& pool, int64_t amount);
  void count_oversize(Stat& stat, size_t size, int64_t amount);

  void trace(Action action, uint64_t address, size_t size, int64_t stream, PoolId pool);
  Pool& pool_of(size_t size, PoolId pool);
  std::vector<Pool*> pools() const;
  bool borrow(Request& request);
  void drop_unused_pools();

  bool find_free(Request& request);
  bool ask_driver(Request& request, bool retry);
  Block* carve(Request& request);
  void count_allocated(Block* block);
  bool should_split(const Block& block, size_t size) const;
  void give_back_block(Block* block);
  void rejoin(Block* block);
  void list_active(Block* block);
  void unlist_active(Block* block);
  void set_fraction(double fraction);
  static void merge(Block* into, Block* neighbour);
  Block* take_in(Block* free, Block* neighbour);
  Block* fresh_block();
  void finish_awaiting();

  void collect_garbage();
  bool release_oversize(const Request& request);
  void release_all();
  void release_pool(Pool& pool);
  void release_segment(Block* block);

  Block* grow_expandable(const Request& request);
  Block* find_expandable(const Request& request);
  bool map(Block* block, size_t size);
  void unmap(Block* block);

  mutable std::mutex mutex_;
  Settings settings_;
  Driver driver_;
  Statistics stats_;
  int64_t highest_ = 0;
  std::unique_ptr<Pool> small_, large_;
  std::map<PoolId, std::unique_ptr<PrivatePool>> private_;
  Block* active_ = nullptr;       // a list of those handed out, or waiting for a stream
  Block* spare_ = nullptr;        // that is no part of a segment any more
  std::vector<Block*> awaiting_;  // freed, but used on another stream
  int captures_ = 0;
  StreamClock clock_ = nullptr;
  int device_ = 0;
  std::vector<std::unique_ptr<ExpandableSegment>> expandable_;
  size_t reserved_ = 0;
  std::optional<double> fraction_;
  size_t allowed_ = 0;
  bool tracing_ = false;
  std::vector<Trace> traces_;
};

}  // namespace anydevice::memory
