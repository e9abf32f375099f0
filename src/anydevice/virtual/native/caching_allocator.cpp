// The rules of PyTorch's CUDACachingAllocator (torch 2.11 to 2.13): rounding, pools, best fit,
// splitting, coalescing, and what happens when the card refuses. Private pools are not modelled.
#include "caching_allocator.h"

#include <algorithm>
#include <iterator>

namespace anydevice::memory {

namespace {

constexpr size_t kMinBlock = 512;
constexpr size_t kSmallSize = kMiB;          // the largest request of the small pool
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kMinLargeRequest = 10 * kMiB;  // from here a segment is made to measure
constexpr size_t kRoundLarge = 2 * kMiB;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

int log2_floor(size_t size) { return 63 - __builtin_clzll(size); }

size_t round_to_division(size_t size, size_t divisions) {
  if ((size & (size - 1)) == 0) return size;
  const size_t floor = size_t{1} << log2_floor(size);
  const size_t step = floor >> log2_floor(divisions);
  return step == 0 ? floor << 1 : round_up(size, step);
}

}  // namespace

struct Block {
  int64_t stream = 0;
  uint64_t address = 0;
  size_t size = 0;
  size_t requested = 0;
  Pool* pool = nullptr;
  Block* prev = nullptr;  // neighbours in the same segment
  Block* next = nullptr;
  ExpandableSegment* segment = nullptr;  // only in expandable segments
  int64_t born = 0;                      // the pool's search count when it became free
  std::set<int64_t> other_streams;
  bool allocated = false;
  bool mapped = true;
  bool awaiting = false;

  bool is_split() const { return prev || next; }
  bool is_free() const { return !allocated && !awaiting && other_streams.empty(); }
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    return a->address < b->address;
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
  }
};

namespace {

void link(Block* before, Block* block, Block* after) {
  block->prev = before;
  block->next = after;
  if (before) before->next = block;
  if (after) after->prev = block;
}

}  // namespace

struct Pool {
  explicit Pool(bool small) : small(small) {}
  const bool small;
  std::set<Block*, BySize> free;
  std::set<Block*, ByAddress> unmapped;
  int64_t searches = 0;

  void insert(Block* block) {
    block->born = searches;
    free.insert(block);
  }
  int64_t age(const Block* block) const { return searches - block->born; }
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
};

// ---- statistics

void Stat::add(int64_t amount) {
  current += amount;
  peak = std::max(peak, current);
  (amount > 0 ? allocated : freed) += std::abs(amount);
}

std::array<Stats3*, 9> Statistics::by_pool() {
  return {&allocation,      &segment,        &active,       &inactive_split, &allocated_bytes,
          &reserved_bytes,  &active_bytes,   &inactive_split_bytes,          &requested_bytes};
}

void CachingAllocator::count(Counted stat, const Pool& pool, int64_t amount) {
  (stats_.*stat)[0].add(amount);
  (stats_.*stat)[pool.small ? 1 : 2].add(amount);
}

void CachingAllocator::count_oversize(Stat& stat, size_t size, int64_t amount) {
  if (size >= settings_.max_split_size) stat.add(amount);
}

// ---- the driver

bool Driver::take(size_t size) {
  if (size > free()) return false;
  used_ += size;
  return true;
}

uint64_t Driver::reserve_addresses(size_t size) {
  const uint64_t address = next_address_;
  next_address_ += round_up(size, 2 * kMiB);
  return address;
}

void Driver::set_outside(size_t bytes) {
  used_ += bytes - outside_;
  outside_ = bytes;
}

// ---- life

CachingAllocator::CachingAllocator(size_t total, Settings settings)
    : settings_(settings), driver_(total), small_(new Pool(true)), large_(new Pool(false)) {
  stats_.max_split_size = static_cast<int64_t>(settings.max_split_size);
}

CachingAllocator::~CachingAllocator() {
  for (Pool* pool : {small_.get(), large_.get()}) {
    for (Block* block : pool->free) delete block;
    for (Block* block : pool->unmapped) delete block;
  }
  for (Block* block : active_) delete block;
}

void CachingAllocator::configure(const Settings& settings) {
  std::lock_guard lock(mutex_);
  settings_ = settings;
}

void CachingAllocator::set_memory_fraction(double fraction) {
  std::lock_guard lock(mutex_);
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
  driver_.set_outside(outside);
}

std::pair<size_t, size_t> CachingAllocator::free_and_total() const {
  std::lock_guard lock(mutex_);
  return {driver_.free(), driver_.total()};
}

// ---- handing out

size_t CachingAllocator::round_size(size_t requested, const Settings& settings) {
  if (requested < kMinBlock) return kMinBlock;
  const int megabytes = std::clamp(log2_floor(requested) - 20, 0, 15);
  const size_t divisions = settings.roundup_power2_divisions[megabytes];
  if (divisions > 1 && requested > kMinBlock * divisions)
    return round_to_division(requested, divisions);
  return round_up(requested, kMinBlock);
}

size_t CachingAllocator::segment_size(size_t rounded, const Settings& settings) {
  if (rounded <= kSmallSize) return kSmallSegment;
  if (rounded < kMinLargeRequest) return settings.large_segment_size;
  return round_up(rounded, kRoundLarge);
}

Block* CachingAllocator::allocate(size_t requested, int64_t stream) {
  std::lock_guard lock(mutex_);
  finish_awaiting();
  const size_t size = round_size(requested, settings_);
  Pool* pool = (size <= kSmallSize ? small_ : large_).get();
  Request request{requested, size, segment_size(size, settings_), stream, pool};

  if (!find_free(request)) {
    if (fraction_ && settings_.garbage_collection_threshold > 0) collect_garbage();
    bool found = ask_driver(request, false) ||
                 (release_oversize(request) && ask_driver(request, false));
    if (!found) {
      release_all();
      found = ask_driver(request, true);
    }
    if (!found) {
      stats_.num_ooms += 1;
      throw OutOfMemory{request.segment_size,
                        driver_.total(),
                        driver_.free(),
                        fraction_ ? std::optional(allowed_) : std::nullopt,
                        static_cast<size_t>(stats_.allocated_bytes[0].current),
                        static_cast<size_t>(stats_.reserved_bytes[0].current)};
    }
  }
  return hand_out(request);
}

// Best fit on the request's stream, by size and then address.
bool CachingAllocator::find_free(Request& request) {
  Pool& pool = *request.pool;
  if (fraction_ && settings_.garbage_collection_threshold > 0) ++pool.searches;

  Block key;
  key.stream = request.stream;
  key.size = request.size;
  auto it = pool.free.lower_bound(&key);
  const auto usable = [&](auto i) { return i != pool.free.end() && (*i)->stream == request.stream; };
  if (!usable(it)) return false;

  if ((*it)->segment && settings_.expandable_segments) {
    // A block that can grow counts as large as it can become: prefer one that fits more tightly.
    const auto reach = [](const Block* block) {
      return block->size + (block->next && !block->next->mapped ? block->next->size : 0);
    };
    for (auto next = std::next(it);
         (*it)->segment && usable(next) && reach(*next) < reach(*it); ++next)
      it = next;
  } else if ((*it)->segment) {
    do {
      ++it;
    } while (usable(it) && (*it)->segment);
    if (!usable(it)) return false;
  }

  const size_t limit = settings_.max_split_size;
  if (request.size < limit && (*it)->size >= limit) return false;
  if (request.size >= limit &&
      (*it)->size >= request.size + settings_.max_non_split_rounding)
    return false;
  request.block = *it;
  pool.free.erase(it);
  return true;
}

bool CachingAllocator::ask_driver(Request& request, bool retry) {
  if (retry) stats_.num_alloc_retries += 1;
  if (fraction_ && reserved_ + request.segment_size > allowed_) return false;
  if (settings_.expandable_segments) {
    request.block = grow_expandable(request);
    return request.block != nullptr;
  }
  if (!driver_.take(request.segment_size)) return false;

  auto* block = new Block;
  block->stream = request.stream;
  block->address = driver_.reserve_addresses(request.segment_size);
  block->size = request.segment_size;
  block->pool = request.pool;
  request.block = block;
  reserved_ += block->size;
  count(&Statistics::segment, *block->pool, 1);
  count(&Statistics::reserved_bytes, *block->pool, static_cast<int64_t>(block->size));
  count_oversize(stats_.oversize_segments, block->size, 1);
  stats_.num_device_alloc += 1;
  return true;
}

bool CachingAllocator::should_split(const Block& block, size_t size) const {
  const size_t rest = block.size - size;
  if (block.pool->small || settings_.expandable_segments) return rest >= kMinBlock;
  return size < settings_.max_split_size && rest > kSmallSize;
}

Block* CachingAllocator::hand_out(Request& request) {
  Block* block = request.block;
  Pool& pool = *request.pool;
  const bool was_split = block->is_split();
  // Expandable segments can always return whole units, so they have no "inactive split" figures.
  const bool counts_splits = !block->segment;

  if (should_split(*block, request.size)) {
    Block* rest = block;
    block = new Block;
    block->stream = rest->stream;
    block->address = rest->address;
    block->size = request.size;
    block->pool = &pool;
    block->segment = rest->segment;
    link(rest->prev, block, rest);
    rest->address += request.size;
    rest->size -= request.size;
    pool.insert(rest);
    if (counts_splits && was_split) {
      count(&Statistics::inactive_split_bytes, pool, -static_cast<int64_t>(block->size));
    } else if (counts_splits) {
      count(&Statistics::inactive_split_bytes, pool, static_cast<int64_t>(rest->size));
      count(&Statistics::inactive_split, pool, 1);
    }
  } else if (was_split && counts_splits) {
    count(&Statistics::inactive_split_bytes, pool, -static_cast<int64_t>(block->size));
    count(&Statistics::inactive_split, pool, -1);
  }

  block->allocated = true;
  block->requested = request.requested;
  active_.insert(block);
  count(&Statistics::allocation, pool, 1);
  count(&Statistics::allocated_bytes, pool, static_cast<int64_t>(block->size));
  count(&Statistics::active, pool, 1);
  count(&Statistics::active_bytes, pool, static_cast<int64_t>(block->size));
  count(&Statistics::requested_bytes, pool, static_cast<int64_t>(block->requested));
  count_oversize(stats_.oversize_allocations, block->size, 1);
  return block;
}

// ---- taking back

void CachingAllocator::free(Block* block) {
  std::lock_guard lock(mutex_);
  block->allocated = false;
  count(&Statistics::allocation, *block->pool, -1);
  count(&Statistics::allocated_bytes, *block->pool, -static_cast<int64_t>(block->size));
  count_oversize(stats_.oversize_allocations, block->size, -1);
  if (block->other_streams.empty()) {
    give_back_block(block);
  } else {
    block->awaiting = true;
    awaiting_.push_back(block);
  }
}

void CachingAllocator::record_stream(Block* block, int64_t stream) {
  std::lock_guard lock(mutex_);
  if (stream != block->stream) block->other_streams.insert(stream);
}

// The card looks whether other streams are done with a block at the next allocation. Here all work
// is done by then, as it is on a card that has kept up.
void CachingAllocator::finish_awaiting() {
  for (Block* block : awaiting_) {
    block->awaiting = false;
    block->other_streams.clear();
    give_back_block(block);
  }
  awaiting_.clear();
}

void CachingAllocator::give_back_block(Block* block) {
  Pool& pool = *block->pool;
  const auto size = static_cast<int64_t>(block->size);
  const auto requested = static_cast<int64_t>(block->requested);
  int64_t splits = 0, split_bytes = 0;
  for (Block* neighbour : {block->prev, block->next}) {
    const size_t merged = merge(block, neighbour);
    splits -= merged > 0;
    split_bytes -= static_cast<int64_t>(merged);
  }
  active_.erase(block);
  pool.insert(block);
  if (block->is_split()) {
    splits += 1;
    split_bytes += static_cast<int64_t>(block->size);
  }
  if (!block->segment) {
    if (splits) count(&Statistics::inactive_split, pool, splits);
    if (split_bytes) count(&Statistics::inactive_split_bytes, pool, split_bytes);
  }
  count(&Statistics::active, pool, -1);
  count(&Statistics::active_bytes, pool, -size);
  count(&Statistics::requested_bytes, pool, -requested);
}

// Joins a free neighbour to a block; the size won, or 0.
size_t CachingAllocator::merge(Block* into, Block* neighbour) {
  if (!neighbour || !neighbour->is_free() || into->mapped != neighbour->mapped) return 0;
  Pool& pool = *into->pool;
  if (neighbour->mapped)
    pool.free.erase(neighbour);
  else
    pool.unmapped.erase(neighbour);
  if (into->prev == neighbour) {
    into->address = neighbour->address;
    link(neighbour->prev, into, into->next);
  } else {
    link(into->prev, into, neighbour->next);
  }
  const size_t size = neighbour->size;
  into->size += size;
  delete neighbour;
  return size;
}

// ---- when the card refuses

// Frees the cached segments that have waited longer than the average, until enough is reclaimed.
void CachingAllocator::collect_garbage() {
  const auto threshold = static_cast<size_t>(
      settings_.garbage_collection_threshold * static_cast<double>(allowed_));
  if (reserved_ <= threshold) return;
  const size_t target = reserved_ - threshold;
  Pool& pool = *large_;
  int64_t total_age = 0, freeable = 0;
  for (const Block* block : pool.free) {
    if (block->is_split()) continue;
    total_age += pool.age(block);
    ++freeable;
  }

  size_t reclaimed = 0;
  bool progress = true;
  while (reclaimed < target && progress && freeable > 0) {
    const double old = static_cast<double>(total_age) / static_cast<double>(freeable);
    progress = false;
    for (auto it = pool.free.begin(); it != pool.free.end();) {
      Block* block = *it++;
      if (block->is_split() || static_cast<double>(pool.age(block)) < old) continue;
      progress = true;
      reclaimed += block->size;
      total_age -= pool.age(block);
      --freeable;
      release_segment(block);
    }
  }
}

// With a split limit: frees oversize blocks of this stream, but only as many as the request needs.
bool CachingAllocator::release_oversize(const Request& request) {
  const size_t limit = settings_.max_split_size;
  if (limit == kUnlimited) return false;
  auto& free = request.pool->free;
  Block key;
  key.stream = request.stream;
  key.size = std::max(request.size, limit);
  auto it = free.lower_bound(&key);
  if (it != free.end() && (*it)->stream == request.stream) {
    release_segment(*it);
    return true;
  }
  size_t released = 0;
  while (it != free.begin() && released < key.size) {
    Block* largest = *--it;
    if (largest->size < limit || largest->stream != request.stream) break;
    released += largest->size;
    it = std::next(it);
    release_segment(largest);
  }
  return released >= key.size;
}

void CachingAllocator::release_all() {
  stats_.num_sync_all_streams += 1;
  finish_awaiting();
  release_pool(*large_);
  release_pool(*small_);
}

void CachingAllocator::release_pool(Pool& pool) {
  std::vector<Block*> to_unmap;
  for (auto it = pool.free.begin(); it != pool.free.end();) {
    Block* block = *it++;
    if (block->segment)
      to_unmap.push_back(block);
    else if (!block->is_split())
      release_segment(block);
  }
  for (Block* block : to_unmap) unmap(block);
}

void CachingAllocator::release_segment(Block* block) {
  Pool& pool = *block->pool;
  pool.free.erase(block);
  driver_.give_back(block->size);
  reserved_ -= block->size;
  stats_.num_device_free += 1;
  count(&Statistics::segment, pool, -1);
  count(&Statistics::reserved_bytes, pool, -static_cast<int64_t>(block->size));
  count_oversize(stats_.oversize_segments, block->size, -1);
  delete block;
}

void CachingAllocator::empty_cache() {
  std::lock_guard lock(mutex_);
  release_all();
}

// ---- expandable segments

// The first free stretch of addresses with room for the request, or a new range.
Block* CachingAllocator::find_expandable(const Request& request) {
  const auto has_room = [&](const Block* block) {
    size_t bytes = 0;
    for (; bytes < request.size && block && block->is_free(); block = block->next)
      bytes += block->size;
    return bytes >= request.size;
  };
  Pool& pool = *request.pool;
  for (Block* block : pool.unmapped) {
    if (block->stream != request.stream) continue;
    if (block->prev && block->prev->is_free()) block = block->prev;
    if (has_room(block)) return block;
  }

  // An eighth more than the card has: pages unmapped early may be needed again at the end.
  const size_t unit = pool.small ? kSmallSegment : settings_.large_segment_size;
  const size_t size = round_up(driver_.total() + driver_.total() / 8, unit);
  expandable_.push_back(std::make_unique<ExpandableSegment>(
      ExpandableSegment{driver_.reserve_addresses(size), unit, size}));
  auto* block = new Block;
  block->stream = request.stream;
  block->address = expandable_.back()->address;
  block->size = size;
  block->pool = &pool;
  block->segment = expandable_.back().get();
  block->mapped = false;
  pool.unmapped.insert(block);
  return block;
}

Block* CachingAllocator::grow_expandable(const Request& request) {
  Block* block = find_expandable(request);
  if (!block->mapped && !map(block, std::min(block->size, request.size))) return nullptr;
  while (block->size < request.size) {
    Block* next = block->next;  // unmapped; mapping merges the two
    if (!map(next, std::min(request.size - block->size, next->size))) return nullptr;
    block = next;
  }
  request.pool->free.erase(block);
  return block;
}

// Puts memory behind the first units of an unmapped block.
bool CachingAllocator::map(Block* block, size_t size) {
  const size_t mapped = round_up(size, block->segment->unit);
  if (!driver_.take(mapped)) return false;
  Pool& pool = *block->pool;
  pool.unmapped.erase(block);
  block->mapped = true;
  if (mapped < block->size) {
    auto* rest = new Block;
    rest->stream = block->stream;
    rest->address = block->address + mapped;
    rest->size = block->size - mapped;
    rest->pool = &pool;
    rest->segment = block->segment;
    rest->mapped = false;
    link(block, rest, block->next);
    pool.unmapped.insert(rest);
    block->size = mapped;
  }
  merge(block, block->prev);
  merge(block, block->next);
  pool.insert(block);
  reserved_ += mapped;
  count(&Statistics::reserved_bytes, pool, static_cast<int64_t>(mapped));
  stats_.num_device_alloc += 1;
  return true;
}

// Takes the memory from all whole units of a free block; what is left over stays free.
void CachingAllocator::unmap(Block* block) {
  ExpandableSegment* segment = block->segment;
  const uint64_t offset = block->address - segment->address;
  const uint64_t begin = round_up(offset, segment->unit);
  const uint64_t end = (offset + block->size) / segment->unit * segment->unit;
  if (begin >= end) return;
  Pool& pool = *block->pool;
  pool.free.erase(block);
  const auto leave = [&](uint64_t from, uint64_t to, Block* before, Block* after) {
    if (from == to) return;
    auto* part = new Block;
    part->stream = block->stream;
    part->address = segment->address + from;
    part->size = to - from;
    part->pool = &pool;
    part->segment = segment;
    link(before, part, after);
    pool.insert(part);
  };
  leave(offset, begin, block->prev, block);
  leave(end, offset + block->size, block, block->next);
  block->address = segment->address + begin;
  block->size = end - begin;
  block->mapped = false;
  merge(block, block->prev);
  merge(block, block->next);
  pool.unmapped.insert(block);

  driver_.give_back(end - begin);
  reserved_ -= end - begin;
  count(&Statistics::reserved_bytes, pool, -static_cast<int64_t>(end - begin));
  stats_.num_device_free += 1;
  if (block->is_split()) return;
  pool.unmapped.erase(block);
  delete block;
  const auto gone = [&](const auto& owned) { return owned.get() == segment; };
  expandable_.erase(std::find_if(expandable_.begin(), expandable_.end(), gone));
}

// ---- looking

Statistics CachingAllocator::statistics() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_accumulated() {
  std::lock_guard lock(mutex_);
  for (Stats3* stats : stats_.by_pool())
    for (Stat& stat : *stats) stat.reset_accumulated();
  stats_.oversize_allocations.reset_accumulated();
  stats_.oversize_segments.reset_accumulated();
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void CachingAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  for (Stats3* stats : stats_.by_pool())
    for (Stat& stat : *stats) stat.reset_peak();
  stats_.oversize_allocations.reset_peak();
  stats_.oversize_segments.reset_peak();
}

std::vector<SegmentInfo> CachingAllocator::snapshot() const {
  std::lock_guard lock(mutex_);
  std::vector<const Block*> heads;
  const auto collect = [&](const Block* block) {
    if (!block->prev || !block->prev->mapped) heads.push_back(block);
  };
  for (const Pool* pool : {small_.get(), large_.get()})
    for (const Block* block : pool->free) collect(block);
  for (const Block* block : active_) collect(block);
  std::sort(heads.begin(), heads.end(),
            [](const Block* a, const Block* b) { return a->address < b->address; });

  std::vector<SegmentInfo> segments;
  for (const Block* head : heads) {
    SegmentInfo info;
    info.address = head->address;
    info.stream = head->stream;
    info.large = !head->pool->small;
    info.expandable = head->segment != nullptr;
    for (const Block* block = head; block && block->mapped; block = block->next) {
      const bool active = !block->is_free();
      info.blocks.push_back(
          {block->address, block->size, block->requested, block->allocated, active});
      info.total += block->size;
      if (block->allocated) info.allocated += block->size;
      if (active) info.active += block->size;
      if (active) info.requested += block->requested;
    }
    segments.push_back(std::move(info));
  }
  return segments;
}

size_t CachingAllocator::largest_cached() const {
  std::lock_guard lock(mutex_);
  size_t largest = 0;
  for (const Pool* pool : {small_.get(), large_.get()})
    for (const Block* block : pool->free) largest = std::max(largest, block->size);
  return largest;
}

uint64_t CachingAllocator::address(const Block* block) { return block->address; }
size_t CachingAllocator::size(const Block* block) { return block->size; }

}  // namespace anydevice::memory
