// CPython's own functions, found by their names: the library is built without its headers.
#pragma once

#include <dlfcn.h>

namespace anydevice {

template <typename Function>
Function* pythons(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// Puts a Python error that is being raised aside for a while. Tensors are freed while it is raised;
// we call Python to report that, and Python code cannot run with an error set.
class ErrorAside {
 public:
  ErrorAside() {
    static auto* const running = pythons<int()>("Py_IsInitialized");
    static auto* const lock = pythons<int()>("PyGILState_Ensure");
    static auto* const take = pythons<void(void**, void**, void**)>("PyErr_Fetch");
    if (running != nullptr && running() != 0) {
      locked_ = true;
      state_ = lock();
      take(&type_, &value_, &trace_);
    }
  }
  ~ErrorAside() {
    static auto* const unlock = pythons<void(int)>("PyGILState_Release");
    static auto* const put_back = pythons<void(void*, void*, void*)>("PyErr_Restore");
    if (locked_) {
      put_back(type_, value_, trace_);
      unlock(state_);
    }
  }
  ErrorAside(const ErrorAside&) = delete;
  ErrorAside& operator=(const ErrorAside&) = delete;

 private:
  bool locked_ = false;
  int state_ = 0;
  void *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

}  // namespace anydevice
