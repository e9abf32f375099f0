// What torch.cuda.memory's Python side needs of the allocator, as plain C functions. `device` must
// be a device that there is.
#include "c_api.h"
#include "memory.h"

#include <sstream>
#include <string>
#include <tuple>

namespace anydevice::memory {

ANYDEVICE_API void anydevice_memory_use_pool(int device, int64_t first, int64_t second) {
  use_pool(static_cast<DeviceIndex>(device), {first, second});
}

ANYDEVICE_API void anydevice_memory_pool_in_use(int device, int64_t* first, int64_t* second) {
  std::tie(*first, *second) = pool_in_use(static_cast<DeviceIndex>(device));
}

// What this thread allocates is not counted: a graph's replay works in memory that it has already.
ANYDEVICE_API void anydevice_memory_count(int counted) { count_in_this_thread(counted != 0); }

// While a graph is captured, or a pool apart is used, blocks of other streams are not taken back.
ANYDEVICE_API void anydevice_memory_begin_capture(int device) {
  of(static_cast<DeviceIndex>(device)).begin_capture();
}
ANYDEVICE_API void anydevice_memory_end_capture(int device) {
  of(static_cast<DeviceIndex>(device)).end_capture();
}

ANYDEVICE_API int anydevice_memory_is_caching() { return is_caching(); }
ANYDEVICE_API void anydevice_memory_set_caching(int on) { set_caching(on != 0); }

ANYDEVICE_API const char* anydevice_memory_tell_history(Historian heard) {
  return attempt([&] { set_historian(heard); });
}

// The names of the figures of anydevice_memory_stats in their order, one a line, in the form
// "allocated_bytes.all.current"; a dot is a level of torch._C._cuda_memoryStats's dictionary.
ANYDEVICE_API const char* anydevice_memory_stat_names() {
  static const std::string names = [] {
    std::string text =
        "num_alloc_retries\nnum_ooms\nmax_split_size\nnum_sync_all_streams\n"
        "num_device_alloc\nnum_device_free\nnum_oom_rejections";
    const auto four = [&](const std::string& stat) {
      for (const char* figure : {"current", "peak", "allocated", "freed"}) {
        text += "\n" + stat + "." + figure;
      }
    };
    for (const char* stat :
         {"allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
          "active_bytes", "inactive_split_bytes", "requested_bytes"}) {
      for (const char* pool : {"all", "small_pool", "large_pool"}) {
        four(std::string(stat) + "." + pool);
      }
    }
    four("oversize_allocations");
    four("oversize_segments");
    return text;
  }();
  return names.c_str();
}

ANYDEVICE_API const char* anydevice_memory_stats(int device, int64_t* out) {
  return attempt([&] {
    auto stats = of(static_cast<DeviceIndex>(device)).statistics();
    for (int64_t figure :
         {stats.num_alloc_retries, stats.num_ooms, stats.max_split_size, stats.num_sync_all_streams,
          stats.num_device_alloc, stats.num_device_free, int64_t{0}}) {
      *out++ = figure;
    }
    const auto four = [&](const Stat& stat) {
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
  });
}

// The segments of a device as JSON, with the keys of torch.cuda.memory_snapshot(): of one pool, or
// of all for {0, 0}. The text lives until this thread asks again.
ANYDEVICE_API const char* anydevice_memory_snapshot(int device, int64_t first, int64_t second) {
  static thread_local std::string text;
  std::ostringstream json;
  const char* between_segments = "[";
  const auto segments = of(static_cast<DeviceIndex>(device)).snapshot({first, second});
  report_history(static_cast<DeviceIndex>(device));
  for (const auto& segment : segments) {
    json << between_segments << "{\"device\": " << device << ", \"address\": " << segment.address
         << ", \"total_size\": " << segment.total << ", \"allocated_size\": " << segment.allocated
         << ", \"active_size\": " << segment.active << ", \"requested_size\": " << segment.requested
         << ", \"stream\": " << segment.stream << ", \"segment_type\": \""
         << (segment.large ? "large" : "small") << "\", \"segment_pool_id\": ["
         << segment.pool.first << ", " << segment.pool.second
         << "], \"is_expandable\": " << (segment.expandable ? "true" : "false")
         << ", \"frames\": [], \"blocks\": ";
    const char* between_blocks = "[";
    for (const auto& block : segment.blocks) {
      json << between_blocks << "{\"address\": " << block.address << ", \"size\": " << block.size
           << ", \"requested_size\": " << block.requested << ", \"state\": \""
           << (block.allocated ? "active_allocated"
               : block.active  ? "active_awaiting_free"
                               : "inactive")
           << "\", \"frames\": []}";
      between_blocks = ", ";
    }
    json << "]}";
    between_segments = ", ";
  }
  json << (segments.empty() ? "[]" : "]");
  text = json.str();
  return text.c_str();
}

// Of the pool {0, 0}: what is cached in all pools that nobody uses.
ANYDEVICE_API const char* anydevice_memory_empty_cache(int64_t first, int64_t second) {
  return attempt([&] {
    allocator()->emptyCache({static_cast<uint64_t>(first), static_cast<uint64_t>(second)});
  });
}

ANYDEVICE_API const char* anydevice_memory_retain_pool(int device, int64_t first, int64_t second,
                                                       int no_split, int use_on_oom) {
  return attempt([&] {
    of(static_cast<DeviceIndex>(device))
        .retain_pool({first, second}, {no_split != 0, use_on_oom != 0});
  });
}

ANYDEVICE_API const char* anydevice_memory_release_pool(int device, int64_t first, int64_t second) {
  return attempt([&] { of(static_cast<DeviceIndex>(device)).release_pool({first, second}); });
}

ANYDEVICE_API int anydevice_memory_pool_uses(int device, int64_t first, int64_t second) {
  return of(static_cast<DeviceIndex>(device)).pool_uses({first, second});
}

// Bytes reserved by each private pool of a device, as JSON: a list of [first, second, 12 figures].
ANYDEVICE_API const char* anydevice_memory_private_pools(int device) {
  static thread_local std::string text;
  text = "[";
  for (const auto& [id, reserved] : of(static_cast<DeviceIndex>(device)).reserved_by_pool()) {
    text += (text.size() > 1 ? ", [" : "[") + std::to_string(id.first) + ", " +
            std::to_string(id.second);
    for (const auto& stat : reserved) {
      for (int64_t figure : {stat.current, stat.peak, stat.allocated, stat.freed}) {
        text += ", " + std::to_string(figure);
      }
    }
    text += "]";
  }
  text += "]";
  return text.c_str();
}

ANYDEVICE_API const char* anydevice_memory_reset_peak(int device) {
  return attempt([&] { of(static_cast<DeviceIndex>(device)).reset_peak(); });
}

// Most bytes that were ever allocated at a time, on a device that need not be there any more.
ANYDEVICE_API int64_t anydevice_memory_highest(int device) {
  const auto* model = if_used(static_cast<DeviceIndex>(device));
  return model == nullptr ? 0 : model->highest();
}

// Blocks of tensors that are still there.
ANYDEVICE_API int64_t anydevice_memory_blocks(int device) {
  const auto* model = if_used(static_cast<DeviceIndex>(device));
  return model == nullptr ? 0 : model->statistics().allocation[0].current;
}

ANYDEVICE_API const char* anydevice_memory_reset_accumulated(int device) {
  return attempt([&] { of(static_cast<DeviceIndex>(device)).reset_accumulated(); });
}

ANYDEVICE_API const char* anydevice_memory_info(int device, int64_t* free, int64_t* total) {
  return attempt([&] {
    const auto [free_bytes, total_bytes] = of(static_cast<DeviceIndex>(device)).free_and_total();
    *free = static_cast<int64_t>(free_bytes);
    *total = static_cast<int64_t>(total_bytes);
  });
}

ANYDEVICE_API const char* anydevice_memory_set_fraction(int device, double fraction) {
  return attempt([&] { of(static_cast<DeviceIndex>(device)).set_memory_fraction(fraction); });
}

ANYDEVICE_API double anydevice_memory_fraction(int device) {
  return of(static_cast<DeviceIndex>(device)).memory_fraction();
}

// `outside` is what does not pass through this allocator: the context, library workspaces.
ANYDEVICE_API const char* anydevice_memory_set_capacity(int device, int64_t total,
                                                        int64_t outside) {
  return attempt([&] { of(static_cast<DeviceIndex>(device)).set_capacity(total, outside); });
}

}  // namespace anydevice::memory
