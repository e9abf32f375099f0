// Transfers, synchronisations and allocations: who listens to them, and the totals.
#include "anydevice.h"

namespace anydevice {

std::atomic<void (*)(const Report*)> listener{nullptr};
Totals totals;

std::atomic<void (*)(char*, size_t)> write_line{nullptr};

std::string user_line() {
  char text[256] = "";
  if (auto* write = write_line.load()) {
    const ErrorAside aside;
    write(text, sizeof(text));
  }
  return text;
}

}  // namespace anydevice
