// What the host has left. Linux hands out more than it has, and ends the process that then writes
// to it: a program that fills a GPU should get an error that it can catch.
#include "memory.h"
#include "system.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace anydevice::memory {
namespace {

constexpr size_t worth_asking = size_t{128} << 20;
constexpr size_t unlimited = std::numeric_limits<size_t>::max();

// The number behind a name in a file of lines such as "MemAvailable:  1234 kB"; 0 if there is none.
size_t figure(const std::string& file, const std::string& name) {
  std::ifstream lines(file);
  std::string word;
  for (size_t number; lines >> word;) {
    if (word == name && lines >> number) {
      return number;
    }
  }
  return 0;
}

// The number that a file holds, if it is there and holds one ("max" is no limit).
std::optional<size_t> number_in(const std::string& file) {
  size_t number = 0;
  return std::ifstream(file) >> number ? std::optional(number) : std::nullopt;
}

size_t machine_has_left() {
  const std::string file = "/proc/meminfo";
  const auto left = figure(file, "MemAvailable:");
  return left == 0 ? unlimited : (left + figure(file, "SwapFree:")) << 10;
}

// The group of this process in the hierarchy that a line of /proc/self/cgroup begins to name.
std::string own_group(const std::string& hierarchy) {
  std::ifstream lines("/proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    if (const auto found = line.find(hierarchy); found != std::string::npos) {
      return line.substr(found + hierarchy.size());
    }
  }
  return "";
}

// One group's limit, a container's or a job's: memory that caches files counts as free.
struct Group {
  std::string folder, limit, used, files;

  size_t has_left() const {
    const auto most = number_in(folder + limit);
    const auto taken = number_in(folder + used);
    if (!most || !taken) {
      return unlimited;
    }
    const auto held = *taken - std::min(*taken, figure(folder + "/memory.stat", files));
    return *most - std::min(*most, held);
  }
};

// In a container the group's own folder may be the root of what it sees.
size_t groups_have_left() {
  static const auto groups = [] {
    std::vector<Group> all;
    for (const auto& group : {own_group("0::"), std::string()}) {
      all.push_back({"/sys/fs/cgroup" + group, "/memory.max", "/memory.current", "inactive_file"});
    }
    for (const auto& group : {own_group(":memory:"), std::string()}) {
      all.push_back({"/sys/fs/cgroup/memory" + group, "/memory.limit_in_bytes",
                     "/memory.usage_in_bytes", "total_inactive_file"});
    }
    return all;
  }();
  size_t least = unlimited;
  for (const auto& group : groups) {
    least = std::min(least, group.has_left());
  }
  return least;
}

// Where nobody says what is left: what it has at all.
size_t machine_has() {
  const auto pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : unlimited;
}

// At these addresses, or not at all: some systems have fewer of them.
bool map(uint64_t address, size_t size) {
#ifdef MAP_FIXED_NOREPLACE
  if (machine.hollow || !host_has(size)) {
    return false;
  }
  auto* wanted = reinterpret_cast<void*>(address);
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  auto* mapped = mmap(wanted, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapped == MAP_FAILED) {
    return false;
  }
  if (mapped != wanted) {  // a kernel that takes the address for a hint
    munmap(mapped, size);
    return false;
  }
  constexpr size_t worth_huge_pages = size_t{4} << 20;
  if (size >= worth_huge_pages) {
    madvise(mapped, size, MADV_HUGEPAGE);
  }
  return true;
#else
  return false;
#endif
}

void unmap(uint64_t address, size_t size) { munmap(reinterpret_cast<void*>(address), size); }

// Whole pages; what is left over stays.
void drop(uint64_t address, size_t size) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (address + page - 1) / page * page, end = (address + size) / page * page;
  if (begin < end) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace

Backing host_backing() { return {&map, &unmap, &drop}; }

bool host_has(size_t size) {
  return size < worth_asking ||
         size <= (on_linux() ? std::min(machine_has_left(), groups_have_left()) : machine_has());
}

}  // namespace anydevice::memory
