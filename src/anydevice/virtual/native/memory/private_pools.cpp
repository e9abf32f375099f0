// Pools apart from the common one, as CUDA graphs and torch.cuda.MemPool have them, and the record
// of what the caching allocator's model did, for torch.cuda.memory._snapshot().
//
// Note [Private pools]
// ~~~~~~~~~~~~~~~~~~~~
// A captured CUDA graph replays with the addresses that it was captured with. No other tensor may
// get them between two replays, even if the tensors of the capture were freed long ago. So memory
// that is allocated during a capture, or inside torch.cuda.use_mem_pool(), comes from a private
// pool: segments that serve only allocations with the same pool id. {0, 0} is the common pool.
//
// - A thread chooses the pool for each device (memory::use_pool); each block remembers its pool,
//   and returns to it when it is freed.
// - A pool counts its uses (graphs captured with it, a MemPool object). While there are any, a
//   plain empty_cache() leaves its free segments alone. When there are none, the next one takes
//   them, and the pool disappears with its last segment: tensors may outlive their graph.
// - When the card is out of memory, a request of another pool may take a free block from a pool
//   that allows it (use_on_oom). The block still belongs to the lending pool.
#include "blocks.h"

#include <algorithm>
#include <utility>

namespace anydevice::memory {

Pool& CachingAllocator::pool_of(size_t size, PoolId id) {
  const bool small = size <= kMiB;
  if (id != kCommonPool) {
    if (const auto found = private_.find(id); found != private_.end()) {
      return small ? found->second->small : found->second->large;
    }
  }
  return small ? *small_ : *large_;
}

std::vector<Pool*> CachingAllocator::pools() const {
  std::vector<Pool*> all = {small_.get(), large_.get()};
  for (const auto& [id, pool] : private_) {
    all.insert(all.end(), {&pool->small, &pool->large});
  }
  return all;
}

void CachingAllocator::retain_pool(PoolId id, PoolOptions options) {
  std::lock_guard lock(mutex_);
  auto& pool = private_[id];
  if (!pool) {
    pool = std::make_unique<PrivatePool>(id, options);
  }
  ++pool->uses;
}

void CachingAllocator::release_pool(PoolId id) {
  std::lock_guard lock(mutex_);
  if (const auto found = private_.find(id); found != private_.end()) {
    --found->second->uses;
  }
}

int CachingAllocator::pool_uses(PoolId id) const {
  std::lock_guard lock(mutex_);
  const auto found = private_.find(id);
  return found == private_.end() ? 0 : found->second->uses;
}

std::map<PoolId, Stats3> CachingAllocator::reserved_by_pool() const {
  std::lock_guard lock(mutex_);
  std::map<PoolId, Stats3> figures;
  for (const auto& [id, pool] : private_) {
    figures[id] = pool->reserved;
  }
  return figures;
}

// A pool that nobody uses gives its free segments back; it goes when it has none left.
void CachingAllocator::drop_unused_pools() {
  for (auto it = private_.begin(); it != private_.end();) {
    PrivatePool& pool = *it->second;
    if (pool.uses > 0) {
      ++it;
      continue;
    }
    release_pool(pool.small);
    release_pool(pool.large);
    const bool empty =
        pool.reserved[0].current == 0 && pool.small.unmapped.empty() && pool.large.unmapped.empty();
    it = empty ? private_.erase(it) : std::next(it);
  }
}

// The last resort: a free block of a pool that allows it.
bool CachingAllocator::borrow(Request& request) {
  Pool* const asked = request.pool;
  for (auto& [id, pool] : private_) {
    if (pool->options.use_on_oom && id != asked->owner) {
      request.pool = asked->small ? &pool->small : &pool->large;
      if (find_free(request)) {
        return true;
      }
    }
  }
  request.pool = asked;
  return false;
}

// ---- the record

void CachingAllocator::trace(Action action, uint64_t address, size_t size, int64_t stream,
                             PoolId pool) {
  if (tracing_) {
    traces_.push_back({action, address, size, stream, pool});
  }
}

void CachingAllocator::set_tracing(bool on) {
  std::lock_guard lock(mutex_);
  tracing_ = on;
  traces_.clear();
}

std::vector<Trace> CachingAllocator::take_traces() {
  std::lock_guard lock(mutex_);
  return std::exchange(traces_, {});
}

}  // namespace anydevice::memory
