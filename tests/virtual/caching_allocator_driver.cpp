// A C face for the caching allocator alone, for test_memory_model.py: no torch is needed.
#include "../../src/anydevice/virtual/native/memory/cached_segments.cpp"
#include "../../src/anydevice/virtual/native/memory/caching_allocator.cpp"
#include "../../src/anydevice/virtual/native/memory/expandable_segments.cpp"
#include "../../src/anydevice/virtual/native/memory/private_pools.cpp"
#include "../../src/anydevice/virtual/native/memory/statistics.cpp"

using anydevice::memory::Block;
using anydevice::memory::CachingAllocator;
using anydevice::memory::OutOfMemory;
using anydevice::memory::Settings;

extern "C" {

CachingAllocator* make(uint64_t total, uint64_t max_split, uint64_t large_segment,
                       double gc_threshold, int expandable, uint64_t divisions) {
  Settings settings;
  settings.max_split_size = max_split;
  settings.large_segment_size = large_segment;
  settings.max_non_split_rounding = large_segment;
  settings.garbage_collection_threshold = gc_threshold;
  settings.expandable_segments = expandable != 0;
  settings.roundup_power2_divisions.fill(divisions);
  return new CachingAllocator(total, settings);
}

void unmake(CachingAllocator* model) { delete model; }

Block* allocate(CachingAllocator* model, uint64_t size, int64_t stream, uint64_t* refused) {
  try {
    return model->allocate(size, stream);
  } catch (const OutOfMemory& what) {
    const uint64_t figures[] = {what.tried, what.total, what.free, what.allocated, what.reserved};
    std::copy(std::begin(figures), std::end(figures), refused);
    return nullptr;
  }
}

void release(CachingAllocator* model, Block* block) { model->free(block); }
void record_stream(CachingAllocator* model, Block* block, int64_t stream) {
  model->record_stream(block, stream);
}
void empty_cache(CachingAllocator* model) { model->empty_cache(); }
void set_fraction(CachingAllocator* model, double fraction) {
  model->set_memory_fraction(fraction);
}
void reset_peak(CachingAllocator* model) { model->reset_peak(); }
void reset_accumulated(CachingAllocator* model) { model->reset_accumulated(); }
uint64_t size_of(Block* block) { return CachingAllocator::size(block); }
uint64_t address_of(Block* block) { return CachingAllocator::address(block); }

uint64_t free_bytes(CachingAllocator* model) { return model->free_and_total().first; }

// 5 counts, then (current, peak, allocated, freed) of 9 statistics × 3 pools and 2 oversize ones.
void statistics(CachingAllocator* model, int64_t* out) {
  auto stats = model->statistics();
  for (int64_t figure : {stats.num_alloc_retries, stats.num_ooms, stats.num_sync_all_streams,
                         stats.num_device_alloc, stats.num_device_free}) {
    *out++ = figure;
  }
  const auto four = [&](const anydevice::memory::Stat& stat) {
    for (int64_t figure : {stat.current, stat.peak, stat.allocated, stat.freed}) {
      *out++ = figure;
    }
  };
  for (const auto* by_pool : stats.by_pool()) {
    for (const auto& stat : *by_pool) {
      four(stat);
    }
  }
  four(stats.oversize_allocations);
  four(stats.oversize_segments);
}

// Writes (address, size, allocated, active, first of its segment) for each block; returns how many.
int64_t blocks(CachingAllocator* model, uint64_t* out, int64_t room) {
  int64_t count = 0;
  for (const auto& segment : model->snapshot()) {
    bool first = true;
    for (const auto& block : segment.blocks) {
      if (count++ >= room) {
        continue;
      }
      for (uint64_t figure : {block.address, static_cast<uint64_t>(block.size),
                              uint64_t{block.allocated}, uint64_t{block.active}, uint64_t{first}}) {
        *out++ = figure;
      }
      first = false;
    }
  }
  return count;
}
}
