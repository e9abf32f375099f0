// Making and opening files without a name; with one where the system has none without.
#include "shared_file.h"
#include "system.h"
#include "temporary_file.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

namespace anydevice {
namespace {

std::mutex& opened_mutex() {
  static auto* instance = new std::mutex();
  return *instance;
}

std::map<std::string, std::weak_ptr<SharedFile>>& opened() {
  static auto* instance = new std::map<std::string, std::weak_ptr<SharedFile>>();
  return *instance;
}

struct stat status_of(int descriptor) {
  struct stat status {};
  fstat(descriptor, &status);
  return status;
}

// ---- without a name

int new_descriptor() {
#ifdef ANYDEVICE_LINUX
  return memfd_create("anydevice", MFD_CLOEXEC);
#else
  errno = ENOSYS;
  return -1;
#endif
}

// process:descriptor:inode
std::string handle_of(int descriptor) {
  return std::to_string(getpid()) + ":" + std::to_string(descriptor) + ":" +
         std::to_string(status_of(descriptor).st_ino);
}

int descriptor_of(const std::string& handle) {
  long process = 0, theirs = 0;
  unsigned long long inode = 0;
  std::sscanf(handle.c_str(), "%ld:%ld:%llu", &process, &theirs, &inode);
  const auto path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(theirs);
  // Should the number stand for something else by now, opening it must not wait.
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (descriptor >= 0 && status_of(descriptor).st_ino != inode) {
    close(descriptor);
    return -1;
  }
  return descriptor;
}

}  // namespace

SharedFile::SharedFile(int descriptor, size_t size, std::string handle)
    : descriptor_(descriptor), size_(size), handle_(std::move(handle)) {
  auto* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  const auto reason = errno;
  if (start == MAP_FAILED) {
    close(descriptor);
  }
  TORCH_CHECK(start != MAP_FAILED,
              "a tensor on a virtual GPU is sent to another process in memory that "
              "both map, and ",
              size, " bytes could not be mapped: ", std::strerror(reason));
  start_ = static_cast<char*>(start);
}

SharedFile::~SharedFile() {
  munmap(start_, size_);
  if (descriptor_ >= 0) {
    temporary_file::remove(handle_);
    close(descriptor_);
    return;
  }
  const std::lock_guard<std::mutex> lock(opened_mutex());
  if (const auto mine = opened().find(handle_); mine != opened().end() && mine->second.expired()) {
    opened().erase(mine);
  }
}

std::shared_ptr<SharedFile> SharedFile::make(size_t size) {
  std::string name;  // stays empty where none is needed
  const int descriptor = on_linux() ? new_descriptor() : temporary_file::make(name);
  const bool sized = descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(size)) == 0;
  const auto reason = errno;
  if (!sized && descriptor >= 0) {
    temporary_file::remove(name);
    close(descriptor);
  }
  TORCH_CHECK(sized,
              "a tensor on a virtual GPU is sent to another process in memory that "
              "both map, and ",
              size, " bytes of such memory could not be made: ", std::strerror(reason));
  auto handle = on_linux() ? handle_of(descriptor) : name;
  return std::shared_ptr<SharedFile>(new SharedFile(descriptor, size, std::move(handle)));
}

std::shared_ptr<SharedFile> SharedFile::open(const std::string& handle) {
  const std::lock_guard<std::mutex> lock(opened_mutex());
  if (auto known = opened()[handle].lock()) {
    return known;
  }
  const int descriptor = on_linux() ? descriptor_of(handle) : temporary_file::open(handle);
  TORCH_CHECK(descriptor >= 0, "expected the process that sent a CUDA tensor (", handle,
              ") to keep it until it is received, got one that has ended or whose files this "
              "process may not open: keep the sender alive.");
  const auto status = status_of(descriptor);
  std::shared_ptr<SharedFile> file(
      new SharedFile(descriptor, static_cast<size_t>(status.st_size), handle));
  close(descriptor);
  file->descriptor_ = -1;
  opened()[handle] = file;
  return file;
}

}  // namespace anydevice
