// Where a thread is in TorchScript: its frames are none of Python's.
#include "anydevice.h"

#include <torch/csrc/jit/runtime/interpreter.h>

#include <sstream>

namespace anydevice {

// A line for each, the innermost first: function, line and file, with tabs between them.
ANYDEVICE_API const char* anydevice_script_frames() {
  static thread_local std::string text;
  std::ostringstream lines;
  for (const auto& entry : torch::jit::currentCallstack()) {
    const auto place = entry.range.file_line_col();
    lines << entry.filename << '\t' << (place ? std::get<1>(*place) : 0) << '\t'
          << (place ? std::get<0>(*place) : "") << '\n';
  }
  text = lines.str();
  return text.c_str();
}

}  // namespace anydevice
