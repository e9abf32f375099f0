// When the card refuses memory, the caching allocator's model gives cached segments back: the old
// ones, the oversize ones, or all that are not in use in part.
#include "blocks.h"

#include <algorithm>
#include <iterator>

namespace anydevice::memory {

// Frees the cached segments that have waited longer than the average, until enough is reclaimed.
void CachingAllocator::collect_garbage() {
  const auto threshold =
      static_cast<size_t>(settings_.garbage_collection_threshold * static_cast<double>(allowed_));
  if (reserved_ <= threshold) {
    return;
  }
  const size_t target = reserved_ - threshold;
  Pool& pool = *large_;
  int64_t total_age = 0, freeable = 0;
  for (const Block* block : pool.free) {
    if (block->is_split()) {
      continue;
    }
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
      if (block->is_split() || static_cast<double>(pool.age(block)) < old) {
        continue;
      }
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
  if (limit == kUnlimited) {
    return false;
  }
  auto& free = request.pool->free;
  const Wanted key{request.stream, std::max(request.size, limit)};
  auto it = free.lower_bound(key);
  if (it != free.end() && (*it)->stream == request.stream) {
    release_segment(*it);
    return true;
  }
  size_t released = 0;
  while (it != free.begin() && released < key.size) {
    Block* largest = *--it;
    if (largest->size < limit || largest->stream != request.stream) {
      break;
    }
    released += largest->size;
    it = std::next(it);
    release_segment(largest);
  }
  return released >= key.size;
}

void CachingAllocator::release_all() {
  stats_.num_sync_all_streams += 1;
  finish_awaiting();
  drop_unused_pools();
  release_pool(*large_);
  release_pool(*small_);
}

void CachingAllocator::release_pool(Pool& pool) {
  std::vector<Block*> to_unmap;
  for (auto it = pool.free.begin(); it != pool.free.end();) {
    Block* block = *it++;
    if (block->segment) {
      to_unmap.push_back(block);
    } else if (!block->is_split()) {
      release_segment(block);
    }
  }
  for (Block* block : to_unmap) {
    unmap(block);
  }
}

void CachingAllocator::release_segment(Block* block) {
  Pool& pool = *block->pool;
  pool.free.erase(block);
  driver_.give_back(block->size);
  driver_.give_back_addresses(block->address);
  if (block->backed) {
    driver_.backing().unmap(block->address, block->size);
  }
  reserved_ -= block->size;
  stats_.num_device_free += 1;
  count(&Statistics::segment, pool, -1);
  count(&Statistics::reserved_bytes, pool, -static_cast<int64_t>(block->size));
  count_oversize(stats_.oversize_segments, block->size, -1);
  trace(Action::segment_free, block->address, block->size, block->stream, pool.owner);
  delete block;
}

void CachingAllocator::drop_free_contents() {
  std::lock_guard lock(mutex_);
  for (const Pool* pool : pools()) {
    for (const Block* block : pool->free) {
      if (block->backed) {
        driver_.backing().drop(block->address, block->size);
      }
    }
  }
}

void CachingAllocator::empty_cache(PoolId id) {
  std::lock_guard lock(mutex_);
  if (id == kCommonPool) {
    release_all();
  } else if (const auto found = private_.find(id); found != private_.end()) {
    finish_awaiting();
    release_pool(found->second->large);
    release_pool(found->second->small);
    drop_unused_pools();
  }
}

}  // namespace anydevice::memory
