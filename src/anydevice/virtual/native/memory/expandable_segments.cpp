// Expandable segments of the caching allocator's model: ranges of addresses that get and give back
// memory by the page (2 MiB in the small pool, 20 MiB in the large one).
#include "blocks.h"

#include <algorithm>
#include <utility>

namespace anydevice::memory {

// The first free stretch of addresses with room for the request, or a new range.
Block* CachingAllocator::find_expandable(const Request& request) {
  const auto has_room = [&](const Block* block) {
    size_t bytes = 0;
    for (; bytes < request.size && block && block->is_free(); block = block->next) {
      bytes += block->size;
    }
    return bytes >= request.size;
  };
  Pool& pool = *request.pool;
  for (Block* block : pool.unmapped) {
    if (block->stream != request.stream) {
      continue;
    }
    if (block->prev && block->prev->is_free()) {
      block = block->prev;
    }
    if (has_room(block)) {
      return block;
    }
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
  if (!block->mapped && !map(block, std::min(block->size, request.size))) {
    return nullptr;
  }
  while (block->size < request.size) {
    Block* next = block->next;  // unmapped; mapping merges the two
    if (!map(next, std::min(request.size - block->size, next->size))) {
      return nullptr;
    }
    block = next;
  }
  request.pool->free.erase(block);
  return block;
}

// Puts memory behind the first units of an unmapped block.
bool CachingAllocator::map(Block* block, size_t size) {
  const size_t mapped = round_up(size, block->segment->unit);
  if (!driver_.take(mapped)) {
    return false;
  }
  Pool& pool = *block->pool;
  block->backed = driver_.backing().map != nullptr && driver_.backing().map(block->address, mapped);
  trace(Action::segment_map, block->address, mapped, block->stream, pool.owner);
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
  if (begin >= end) {
    return;
  }
  Pool& pool = *block->pool;
  pool.free.erase(block);
  const auto leave = [&](uint64_t from, uint64_t to, Block* before, Block* after) {
    if (from == to) {
      return;
    }
    auto* part = new Block;
    part->stream = block->stream;
    part->address = segment->address + from;
    part->size = to - from;
    part->pool = &pool;
    part->segment = segment;
    part->backed = block->backed;
    link(before, part, after);
    pool.insert(part);
  };
  leave(offset, begin, block->prev, block);
  leave(end, offset + block->size, block, block->next);
  block->address = segment->address + begin;
  block->size = end - begin;
  block->mapped = false;
  if (std::exchange(block->backed, false)) {
    driver_.backing().unmap(block->address, block->size);
  }
  merge(block, block->prev);
  merge(block, block->next);
  pool.unmapped.insert(block);

  driver_.give_back(end - begin);
  reserved_ -= end - begin;
  count(&Statistics::reserved_bytes, pool, -static_cast<int64_t>(end - begin));
  stats_.num_device_free += 1;
  trace(Action::segment_unmap, segment->address + begin, end - begin, block->stream, pool.owner);
  if (block->is_split()) {
    return;
  }
  pool.unmapped.erase(block);
  driver_.give_back_addresses(segment->address);
  delete block;
  const auto gone = [&](const auto& owned) { return owned.get() == segment; };
  expandable_.erase(std::find_if(expandable_.begin(), expandable_.end(), gone));
}

}  // namespace anydevice::memory
