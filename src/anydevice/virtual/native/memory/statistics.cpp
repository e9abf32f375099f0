// The figures of the caching allocator's model: counted as blocks come and go, read and reset from
// outside, and the snapshot of all segments.
#include "blocks.h"

#include <algorithm>

namespace anydevice::memory {

std::array<Stats3*, 9> Statistics::by_pool() {
  return {&allocation,      &segment,        &active,       &inactive_split,
          &allocated_bytes, &reserved_bytes, &active_bytes, &inactive_split_bytes,
          &requested_bytes};
}

void CachingAllocator::count_oversize(Stat& stat, size_t size, int64_t amount) {
  if (size >= settings_.max_split_size) {
    stat.add(amount);
  }
}

Statistics CachingAllocator::statistics() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_accumulated() {
  std::lock_guard lock(mutex_);
  for (Stats3* stats : stats_.by_pool()) {
    for (Stat& stat : *stats) {
      stat.reset_accumulated();
    }
  }
  stats_.oversize_allocations.reset_accumulated();
  stats_.oversize_segments.reset_accumulated();
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void CachingAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  highest_ = std::max(highest_, stats_.allocated_bytes[0].peak);
  for (Stats3* stats : stats_.by_pool()) {
    for (Stat& stat : *stats) {
      stat.reset_peak();
    }
  }
  stats_.oversize_allocations.reset_peak();
  stats_.oversize_segments.reset_peak();
}

int64_t CachingAllocator::highest() const {
  std::lock_guard lock(mutex_);
  return std::max(highest_, stats_.allocated_bytes[0].peak);
}

std::vector<SegmentInfo> CachingAllocator::snapshot(PoolId id) {
  std::lock_guard lock(mutex_);
  std::vector<const Block*> heads;
  const auto collect = [&](const Block* block) {
    const bool wanted = id == kCommonPool || block->pool->owner == id;
    if (wanted && (!block->prev || !block->prev->mapped)) {
      heads.push_back(block);
    }
  };
  for (const Pool* pool : pools()) {
    for (const Block* block : pool->free) {
      collect(block);
    }
  }
  for (const Block* block = active_; block; block = block->active_next) {
    collect(block);
  }
  std::sort(heads.begin(), heads.end(),
            [](const Block* a, const Block* b) { return a->address < b->address; });

  std::vector<SegmentInfo> segments;
  for (const Block* head : heads) {
    SegmentInfo info;
    info.address = head->address;
    info.stream = head->stream;
    info.pool = head->pool->owner;
    info.large = !head->pool->small;
    info.expandable = head->segment != nullptr;
    for (const Block* block = head; block && block->mapped; block = block->next) {
      const bool active = !block->is_free();
      info.blocks.push_back(
          {block->address, block->size, block->requested, block->allocated, active});
      info.total += block->size;
      if (block->allocated) {
        info.allocated += block->size;
      }
      if (active) {
        info.active += block->size;
      }
      if (active) {
        info.requested += block->requested;
      }
    }
    segments.push_back(std::move(info));
  }
  trace(Action::snapshot, 0, static_cast<size_t>(stats_.active_bytes[0].current), 0, kCommonPool);
  return segments;
}

uint64_t CachingAllocator::address(const Block* block) { return block->address; }
bool CachingAllocator::is_backed(const Block* block) { return block->backed; }
size_t CachingAllocator::size(const Block* block) { return block->size; }

}  // namespace anydevice::memory
