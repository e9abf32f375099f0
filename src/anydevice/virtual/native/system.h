// Whether to make Linux's own calls, or do with what other systems have as well. As in Python's
// system.py, ANYDEVICE_PORTABLE=1 chooses the second on Linux too, where the tests run it; as a
// macro it leaves Linux's calls out.
#pragma once

#include <cstdlib>
#include <string_view>

#if defined(__linux__) && !defined(ANYDEVICE_PORTABLE)
#define ANYDEVICE_LINUX 1
#endif

namespace anydevice {

inline bool on_linux() {
#ifdef ANYDEVICE_LINUX
  static const bool portable = [] {
    const char* chosen = std::getenv("ANYDEVICE_PORTABLE");
    return chosen != nullptr && std::string_view(chosen) == "1";
  }();
  return !portable;
#else
  return false;
#endif
}

}  // namespace anydevice
