// What the files of the caching allocator's model share: blocks, the pools of free ones, requests.
#pragma once

#include "caching_allocator.h"
#include "slab.h"

namespace anydevice::memory {

constexpr size_t kSmallSegment = 2 * kMiB;

inline size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

struct Wanted {
  int64_t stream;
  size_t size;
};

struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const;
  bool operator()(const Block* block, const Wanted& wanted) const;
};

using FreeBlocks = std::set<Block*, BySize, SlabAllocator<Block*>>;

struct Block {
  int64_t stream = 0;
  uint64_t address = 0;
  size_t size = 0;
  size_t requested = 0;
  Pool* pool = nullptr;
  Block* prev = nullptr;  // neighbours in the same segment
  Block* next = nullptr;
  Block* active_prev = nullptr;  // in the list of those handed out
  Block* active_next = nullptr;
  ExpandableSegment* segment = nullptr;  // only in expandable segments
  FreeBlocks::iterator place;            // while it is free
  int64_t born = 0;                      // the pool's search count when it became free
  std::vector<int64_t> other_streams;    // that used it; a stream may stand there twice
  bool allocated = false;
  bool mapped = true;
  bool awaiting = false;
  bool backed = false;  // by host memory, at its address
  int64_t done = 0;     // when awaiting: the moment at which its other streams are done

  bool is_split() const { return prev || next; }
  bool is_free() const { return !allocated && !awaiting && other_streams.empty(); }

  static void* operator new(size_t) { return Slab<Block>::take(); }
  static void operator delete(void* block) { Slab<Block>::give(block); }
};

inline bool BySize::operator()(const Block* a, const Block* b) const {
  if (a->stream != b->stream) {
    return a->stream < b->stream;
  }
  if (a->size != b->size) {
    return a->size < b->size;
  }
  return a->address < b->address;
}

inline bool BySize::operator()(const Block* block, const Wanted& wanted) const {
  return block->stream != wanted.stream ? block->stream < wanted.stream : block->size < wanted.size;
}

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
  }
};

inline void link(Block* before, Block* block, Block* after) {
  block->prev = before;
  block->next = after;
  if (before) {
    before->next = block;
  }
  if (after) {
    after->prev = block;
  }
}

struct Pool {
  explicit Pool(bool of_small, PoolId owned_by = kCommonPool) : small(of_small), owner(owned_by) {}
  const bool small;
  const PoolId owner;
  bool no_split = false;
  Stats3* reserved = nullptr;  // of a private pool: its own count
  FreeBlocks free;
  std::set<Block*, ByAddress, SlabAllocator<Block*>> unmapped;
  int64_t searches = 0;

  void insert(Block* block) {
    block->born = searches;
    block->place = free.insert(block).first;
  }

  // A free block gets another address or size. Mostly it stays where it is among the others.
  template <typename Change>
  void change(Block* block, Change change) {
    change(*block);
    block->born = searches;
    const auto before = free.key_comp();
    const auto it = block->place, next = std::next(it);
    if ((it != free.begin() && before(block, *std::prev(it))) ||
        (next != free.end() && before(*next, block))) {
      block->place = free.insert(free.extract(it)).position;
    }
  }
  int64_t age(const Block* block) const { return searches - block->born; }
};

// Lives while it is used, and then until the last of its segments is given back.
struct PrivatePool {
  PrivatePool(PoolId id, PoolOptions chosen) : options(chosen), small(true, id), large(false, id) {
    for (Pool* pool : {&small, &large}) {
      pool->no_split = options.no_split;
      pool->reserved = &reserved;
    }
  }
  const PoolOptions options;
  int uses = 0;
  Stats3 reserved;
  Pool small, large;
};

// A range of addresses of which some units have memory behind them.
struct ExpandableSegment {
  uint64_t address;
  size_t unit;
  size_t size;
};

struct CachingAllocator::Request {
  size_t requested, size, segment_size;
  int64_t stream;
  Pool* pool;
  Block* block = nullptr;
  bool listed = false;  // the block is still among the pool's free ones
};

// For each allocation a dozen times.
[[gnu::always_inline]] inline void CachingAllocator::count(Counted stat, const Pool& pool,
                                                           int64_t amount) {
  (stats_.*stat)[0].add(amount);
  (stats_.*stat)[pool.small ? 1 : 2].add(amount);
  if (pool.reserved != nullptr && stat == &Statistics::reserved_bytes) [[unlikely]] {
    (*pool.reserved)[0].add(amount);
    (*pool.reserved)[pool.small ? 1 : 2].add(amount);
  }
}

}  // namespace anydevice::memory
