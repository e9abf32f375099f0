// What a C function that Python calls has to do: nothing may be thrown past it.
#pragma once

#include "anydevice.h"

#include <string>

namespace anydevice {

// Does the work; null, or what went wrong, which this thread keeps until the next time.
template <typename Work>
const char* attempt(Work work) {
  static thread_local std::string error;
  try {
    work();
    return nullptr;
  } catch (const c10::Error& raised) {
    error = raised.what_without_backtrace();
  } catch (const std::exception& raised) {
    error = raised.what();
  }
  return error.c_str();
}

}  // namespace anydevice
