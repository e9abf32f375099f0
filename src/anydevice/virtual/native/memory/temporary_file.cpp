// A process that is killed leaves its files behind: the next one that makes a file removes them.
#include "temporary_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>

namespace anydevice::temporary_file {
namespace {

const std::string prefix = "anydevice-shared-";  // and the maker's number

std::string folder() {
  const char* chosen = std::getenv("TMPDIR");
  return chosen != nullptr && *chosen != '\0' ? chosen : "/tmp";
}

// Those of this process; a forked child has none.
struct Made {
  std::mutex mutex;
  std::set<std::string> names;
  pid_t process = getpid();
};

Made& made() {
  static auto* instance = new Made();
  return *instance;
}

void remove_all() {
  if (made().process == getpid()) {
    for (const auto& name : made().names) {
      unlink(name.c_str());
    }
  }
}

bool has_ended(pid_t process) { return kill(process, 0) != 0 && errno == ESRCH; }

void remove_left_behind() {
  DIR* all = opendir(folder().c_str());
  while (const auto* entry = all == nullptr ? nullptr : readdir(all)) {
    const std::string name = entry->d_name;
    if (name.rfind(prefix, 0) == 0 && has_ended(std::atoi(name.c_str() + prefix.size()))) {
      unlink((folder() + "/" + name).c_str());
    }
  }
  if (all != nullptr) {
    closedir(all);
  }
}

}  // namespace

int make(std::string& name) {
  static const bool clean = (remove_left_behind(), std::atexit(&remove_all) == 0);
  (void)clean;
  name = folder() + "/" + prefix + std::to_string(getpid()) + "-XXXXXX";
  const int descriptor = mkstemp(name.data());
  if (descriptor >= 0) {
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    const std::lock_guard<std::mutex> lock(made().mutex);
    if (made().process != getpid()) {
      made().names.clear();  // a forked child's are its own
      made().process = getpid();
    }
    made().names.insert(name);
  }
  return descriptor;
}

int open(const std::string& name) {
  const int descriptor = ::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat status {};
  if (descriptor >= 0 &&
      (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid())) {
    close(descriptor);
    return -1;
  }
  return descriptor;
}

void remove(const std::string& name) {
  const std::lock_guard<std::mutex> lock(made().mutex);
  if (made().process == getpid() && made().names.erase(name) > 0) {
    unlink(name.c_str());
  }
}

}  // namespace anydevice::temporary_file
