// Memory that several processes map: on Linux a file without a name, which goes with its last user,
// however that ends, and which others open through /proc as long as the process that made it keeps
// it. Elsewhere it is a temporary file (temporary_file.h).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace anydevice {

class SharedFile {
 public:
  static std::shared_ptr<SharedFile> make(size_t size);
  static std::shared_ptr<SharedFile> open(
      const std::string& handle);  // one mapping for all who ask
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  const std::string& handle() const { return handle_; }  // by which others find it
  char* at(size_t offset) const { return start_ + offset; }
  size_t offset_of(const void* data) const { return static_cast<const char*>(data) - start_; }

 private:
  SharedFile(int descriptor, size_t size, std::string handle);

  int descriptor_;
  char* start_;
  size_t size_;
  std::string handle_;
};

}  // namespace anydevice
