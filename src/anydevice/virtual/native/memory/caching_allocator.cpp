// The rules of PyTorch's CUDACachingAllocator (torch 2.11 to 2.13): rounding, pools, best fit,
// splitting and coalescing.
#include "blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace anydevice::memory {

namespace {

constexpr size_t kMinBlock = 512;
constexpr size_t kSmallSize = kMiB;             // the largest request of the small pool
constexpr size_t kMinLargeRequest = 10 * kMiB;  // from here a segment is made to measure
constexpr size_t kRoundLarge = 2 * kMiB;

int log2_floor(size_t size) { return 63 - __builtin_clzll(size); }

size_t round_to_division(size_t size, size_t divisions) {
  if ((size & (size - 1)) == 0) {
    return size;
  }
  const size_t floor = size_t{1} << log2_floor(size);
  const size_t step = floor >> log2_floor(divisions);
  return step == 0 ? floor << 1 : round_up(size, step);
}

}  // namespace

// ---- the driver

bool Driver::take(size_t size) {
  if (size > free()) {
    return false;
  }
  used_ += size;
  return true;
}

uint64_t Driver::reserve_addresses(size_t size) {
  constexpr uint64_t range = uint64_t{1} << 42;
  const size_t whole = round_up(size, 2 * kMiB);
  if (next_address_ + whole > first_address_ + range) {
    next_address_ = first_address_;  // once around: into gaps
  }
  for (auto after = reserved_.lower_bound(next_address_);
       after != reserved_.end() && after->first < next_address_ + whole; ++after) {
    next_address_ = after->first + after->second;
  }
  const uint64_t address = next_address_;
  next_address_ += whole;
  reserved_[address] = whole;
  return address;
}

void Driver::set_outside(size_t bytes) {
  used_ += bytes - outside_;
  outside_ = bytes;
}

// ---- life

CachingAllocator::CachingAllocator(size_t total, Settings settings, uint64_t first_address,
                                   Backing backing)
    : settings_(settings),
      driver_(total, first_address, backing),
      small_(new Pool(true)),
      large_(new Pool(false)) {
  stats_.max_split_size = static_cast<int64_t>(settings.max_split_size);
  if (settings.memory_fraction) {
    set_fraction(*settings.memory_fraction);
  }
}

CachingAllocator::~CachingAllocator() {
  for (Pool* pool : pools()) {
    for (Block* block : pool->free) {
      delete block;
    }
    for (Block* block : pool->unmapped) {
      delete block;
    }
  }
  while (active_) {
    delete std::exchange(active_, active_->active_next);
  }
  delete spare_;
}

void CachingAllocator::configure(const Settings& settings) {
  std::lock_guard lock(mutex_);
  settings_ = settings;
  if (settings.memory_fraction) {
    set_fraction(*settings.memory_fraction);
  }
}

void CachingAllocator::set_memory_fraction(double fraction) {
  std::lock_guard lock(mutex_);
  set_fraction(fraction);
}

void CachingAllocator::set_fraction(double fraction) {
  fraction_ = fraction;
  allowed_ = static_cast<size_t>(fraction * static_cast<double>(driver_.total()));
}

double CachingAllocator::memory_fraction() const {
  std::lock_guard lock(mutex_);
  return fraction_.value_or(1.0);
}

void CachingAllocator::set_capacity(size_t total, size_t outside) {
  std::lock_guard lock(mutex_);
  driver_.resize(total);
  if (fraction_) {
    set_fraction(*fraction_);
  }
  driver_.set_outside(outside);
}

std::pair<size_t, size_t> CachingAllocator::free_and_total() const {
  std::lock_guard lock(mutex_);
  return {driver_.free(), driver_.total()};
}

bool CachingAllocator::take_uncached(size_t size) {
  std::lock_guard lock(mutex_);
  return driver_.take(size);
}

void CachingAllocator::give_back_uncached(size_t size) {
  std::lock_guard lock(mutex_);
  driver_.give_back(size);
}

// ---- handing out

size_t CachingAllocator::round_size(size_t requested, const Settings& settings) {
  if (requested < kMinBlock) {
    return kMinBlock;
  }
  const int megabytes = std::clamp(log2_floor(requested) - 20, 0, 15);
  const size_t divisions = settings.roundup_power2_divisions[megabytes];
  if (divisions > 1 && requested > kMinBlock * divisions) {
    return round_to_division(requested, divisions);
  }
  return round_up(requested, kMinBlock);
}

size_t CachingAllocator::segment_size(size_t rounded, const Settings& settings) {
  if (rounded <= kSmallSize) {
    return kSmallSegment;
  }
  if (rounded < kMinLargeRequest) {
    return settings.large_segment_size;
  }
  return round_up(rounded, kRoundLarge);
}

Block* CachingAllocator::allocate(size_t requested, int64_t stream, PoolId id) {
  std::lock_guard lock(mutex_);
  finish_awaiting();
  const size_t size = round_size(requested, settings_);
  Pool* pool = &pool_of(size, id);
  Request request{requested, size, segment_size(size, settings_), stream, pool};

  if (!find_free(request)) {
    if (fraction_ && settings_.garbage_collection_threshold > 0) {
      collect_garbage();
    }
    bool found =
        ask_driver(request, false) || (release_oversize(request) && ask_driver(request, false));
    if (!found) {
      release_all();
      found = ask_driver(request, true) || borrow(request);
    }
    if (!found) {
      stats_.num_ooms += 1;
      trace(Action::oom, driver_.free(), request.segment_size, stream, id);
      throw OutOfMemory{request.segment_size,
                        driver_.total(),
                        driver_.free(),
                        fraction_ ? std::optional(allowed_) : std::nullopt,
                        static_cast<size_t>(stats_.allocated_bytes[0].current),
                        static_cast<size_t>(stats_.reserved_bytes[0].current)};
    }
  }
  Block* block = carve(request);
  count_allocated(block);
  return block;
}

Block* CachingAllocator::reserve(size_t requested, int64_t stream, PoolId id) {
  std::lock_guard lock(mutex_);
  finish_awaiting();
  const size_t size = round_size(requested, settings_);
  Pool* pool = &pool_of(size, id);
  Request request{requested, size, segment_size(size, settings_), stream, pool};
  return find_free(request) ? carve(request) : nullptr;
}

void CachingAllocator::settle(Block* block) {
  std::lock_guard lock(mutex_);
  count_allocated(block);
}

void CachingAllocator::cancel(Block* block) {
  std::lock_guard lock(mutex_);
  block->allocated = false;
  rejoin(block);
}

// Best fit on the request's stream, by size and then address.
bool CachingAllocator::find_free(Request& request) {
  Pool& pool = *request.pool;
  if (fraction_ && settings_.garbage_collection_threshold > 0) {
    ++pool.searches;
  }

  auto it = pool.free.lower_bound(Wanted{request.stream, request.size});
  const auto usable = [&](auto i) {
    return i != pool.free.end() && (*i)->stream == request.stream;
  };
  if (!usable(it)) {
    return false;
  }

  if ((*it)->segment && settings_.expandable_segments) {
    // A block that can grow counts as large as it can become: prefer one that fits more tightly.
    const auto reach = [](const Block* block) {
      return block->size + (block->next && !block->next->mapped ? block->next->size : 0);
    };
    for (auto next = std::next(it); (*it)->segment && usable(next) && reach(*next) < reach(*it);
         ++next) {
      it = next;
    }
  } else if ((*it)->segment) {
    do {
      ++it;
    } while (usable(it) && (*it)->segment);
    if (!usable(it)) {
      return false;
    }
  }

  const size_t limit = settings_.max_split_size;
  if (request.size < limit && (*it)->size >= limit) {
    return false;
  }
  if (request.size >= limit && (*it)->size >= request.size + settings_.max_non_split_rounding) {
    return false;
  }
  request.block = *it;
  request.listed = true;
  return true;
}

bool CachingAllocator::ask_driver(Request& request, bool retry) {
  if (retry) {
    stats_.num_alloc_retries += 1;
  }
  if (fraction_ && reserved_ + request.segment_size > allowed_) {
    return false;
  }
  if (settings_.expandable_segments) {
    request.block = grow_expandable(request);
    return request.block != nullptr;
  }
  if (!driver_.take(request.segment_size)) {
    return false;
  }

  auto* block = new Block;
  block->stream = request.stream;
  block->address = driver_.reserve_addresses(request.segment_size);
  block->size = request.segment_size;
  block->pool = request.pool;
  block->backed =
      driver_.backing().map != nullptr && driver_.backing().map(block->address, block->size);
  request.block = block;
  reserved_ += block->size;
  count(&Statistics::segment, *block->pool, 1);
  count(&Statistics::reserved_bytes, *block->pool, static_cast<int64_t>(block->size));
  count_oversize(stats_.oversize_segments, block->size, 1);
  stats_.num_device_alloc += 1;
  trace(Action::segment_alloc, block->address, block->size, block->stream, block->pool->owner);
  return true;
}

bool CachingAllocator::should_split(const Block& block, size_t size) const {
  const size_t rest = block.size - size;
  if (block.pool->no_split) {
    return false;
  }
  if (block.pool->small || settings_.expandable_segments) {
    return rest >= kMinBlock;
  }
  return size < settings_.max_split_size && rest > kSmallSize;
}

// The block for a request, from the free one that was found for it.
Block* CachingAllocator::carve(Request& request) {
  Block* block = request.block;
  Pool& pool = *block->pool;
  const bool was_split = block->is_split();
  // Expandable segments can always return whole units, so they have no "inactive split" figures.
  const bool counts_splits = !block->segment;

  if (should_split(*block, request.size)) {
    Block* rest = block;
    block = fresh_block();
    block->stream = rest->stream;
    block->address = rest->address;
    block->size = request.size;
    block->pool = &pool;
    block->segment = rest->segment;
    block->backed = rest->backed;
    link(rest->prev, block, rest);
    const auto shrink = [&](Block& shorter) {
      shorter.address += request.size;
      shorter.size -= request.size;
    };
    if (request.listed) {
      pool.change(rest, shrink);
    } else {
      shrink(*rest);
      pool.insert(rest);
    }
    if (counts_splits && was_split) {
      count(&Statistics::inactive_split_bytes, pool, -static_cast<int64_t>(block->size));
    } else if (counts_splits) {
      count(&Statistics::inactive_split_bytes, pool, static_cast<int64_t>(rest->size));
      count(&Statistics::inactive_split, pool, 1);
    }
  } else {
    if (request.listed) {
      pool.free.erase(block->place);
    }
    if (was_split && counts_splits) {
      count(&Statistics::inactive_split_bytes, pool, -static_cast<int64_t>(block->size));
      count(&Statistics::inactive_split, pool, -1);
    }
  }

  block->allocated = true;
  block->requested = request.requested;
  list_active(block);
  return block;
}

void CachingAllocator::count_allocated(Block* block) {
  Pool& pool = *block->pool;
  trace(Action::alloc, block->address, block->requested, block->stream, pool.owner);
  count(&Statistics::allocation, pool, 1);
  count(&Statistics::allocated_bytes, pool, static_cast<int64_t>(block->size));
  count(&Statistics::active, pool, 1);
  count(&Statistics::active_bytes, pool, static_cast<int64_t>(block->size));
  count(&Statistics::requested_bytes, pool, static_cast<int64_t>(block->requested));
  count_oversize(stats_.oversize_allocations, block->size, 1);
}

void CachingAllocator::list_active(Block* block) {
  block->active_next = active_;
  if (active_) {
    active_->active_prev = block;
  }
  active_ = block;
}

void CachingAllocator::unlist_active(Block* block) {
  (block->active_prev ? block->active_prev->active_next : active_) = block->active_next;
  if (block->active_next) {
    block->active_next->active_prev = block->active_prev;
  }
  block->active_prev = block->active_next = nullptr;
}

// ---- taking back

void CachingAllocator::free(Block* block) {
  std::lock_guard lock(mutex_);
  block->allocated = false;
  trace(Action::free_requested, block->address, block->requested, block->stream,
        block->pool->owner);
  count(&Statistics::allocation, *block->pool, -1);
  count(&Statistics::allocated_bytes, *block->pool, -static_cast<int64_t>(block->size));
  count_oversize(stats_.oversize_allocations, block->size, -1);
  if (block->other_streams.empty()) {
    give_back_block(block);
  } else {
    block->awaiting = true;
    for (const int64_t stream : block->other_streams) {
      block->done = std::max(block->done, clock_ ? clock_(device_, stream).done : 0);
    }
    awaiting_.push_back(block);
  }
}

void CachingAllocator::set_stream_clock(StreamClock clock, int device) {
  clock_ = clock;
  device_ = device;
}

void CachingAllocator::begin_capture() {
  std::lock_guard lock(mutex_);
  ++captures_;
}

void CachingAllocator::end_capture() {
  std::lock_guard lock(mutex_);
  --captures_;
}

void CachingAllocator::record_stream(Block* block, int64_t stream) {
  std::lock_guard lock(mutex_);
  if (stream != block->stream) {
    block->other_streams.push_back(stream);
  }
}

// At the next allocation the card looks whether other streams have finished with a block. Nobody
// knows that while a graph is captured.
void CachingAllocator::finish_awaiting() {
  if (awaiting_.empty() || (captures_ > 0 && !settings_.graph_capture_record_stream_reuse)) {
    return;
  }
  std::vector<Block*> busy;
  for (Block* block : awaiting_) {
    if (block->done > 0 && clock_(device_, 0).now < block->done) {
      busy.push_back(block);
      continue;
    }
    block->awaiting = false;
    block->done = 0;
    block->other_streams.clear();
    give_back_block(block);
  }
  awaiting_ = std::move(busy);
}

void CachingAllocator::give_back_block(Block* block) {
  const Pool& pool = *block->pool;
  const auto size = static_cast<int64_t>(block->size);
  const auto requested = static_cast<int64_t>(block->requested);
  trace(Action::free_completed, block->address, block->requested, block->stream, pool.owner);
  rejoin(block);
  count(&Statistics::active, pool, -1);
  count(&Statistics::active_bytes, pool, -size);
  count(&Statistics::requested_bytes, pool, -requested);
}

// Back among the free blocks of its pool, with its free neighbours. One of them, where there is
// one, stays in the pool and takes the block in, which is less work than the other way round.
void CachingAllocator::rejoin(Block* block) {
  Pool& pool = *block->pool;
  int64_t splits = 0, split_bytes = 0;
  const auto joins = [&](const Block* neighbour) {
    const bool does = neighbour && neighbour->is_free() && neighbour->mapped == block->mapped;
    splits -= does;
    split_bytes -= does ? static_cast<int64_t>(neighbour->size) : 0;
    return does;
  };
  const bool with_prev = joins(block->prev), with_next = joins(block->next);
  unlist_active(block);
  if (with_prev && with_next) {
    merge(block, block->prev);
  }
  if (with_next) {
    block = take_in(block->next, block);
  } else if (with_prev) {
    block = take_in(block->prev, block);
  } else {
    pool.insert(block);
  }
  if (block->is_split()) {
    splits += 1;
    split_bytes += static_cast<int64_t>(block->size);
  }
  if (!block->segment) {
    if (splits) {
      count(&Statistics::inactive_split, pool, splits);
    }
    if (split_bytes) {
      count(&Statistics::inactive_split_bytes, pool, split_bytes);
    }
  }
}

// A free block takes in a neighbour that is not in the pool.
Block* CachingAllocator::take_in(Block* free, Block* neighbour) {
  free->pool->change(free, [&](Block& longer) {
    if (neighbour->next == free) {
      longer.address = neighbour->address;
      link(neighbour->prev, free, free->next);
    } else {
      link(free->prev, free, neighbour->next);
    }
    longer.size += neighbour->size;
    longer.requested = neighbour->requested;
    longer.backed = longer.backed && neighbour->backed;
  });
  delete std::exchange(spare_, neighbour);
  return free;
}

// Often the one that was taken in last.
Block* CachingAllocator::fresh_block() {
  if (spare_ == nullptr) {
    return new Block;
  }
  *spare_ = Block();
  return std::exchange(spare_, nullptr);
}

// Joins a free neighbour to a block.
void CachingAllocator::merge(Block* into, Block* neighbour) {
  if (!neighbour || !neighbour->is_free() || into->mapped != neighbour->mapped) {
    return;
  }
  Pool& pool = *into->pool;
  if (neighbour->mapped) {
    pool.free.erase(neighbour->place);
  } else {
    pool.unmapped.erase(neighbour);
  }
  if (into->prev == neighbour) {
    into->address = neighbour->address;
    link(neighbour->prev, into, into->next);
  } else {
    link(into->prev, into, neighbour->next);
  }
  into->size += neighbour->size;
  into->backed = into->backed && neighbour->backed;
  delete neighbour;
}

}  // namespace anydevice::memory
