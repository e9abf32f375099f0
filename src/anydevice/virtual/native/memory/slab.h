// Small objects apart from the heap, where they would settle in the holes that freed
// tensors leave, and the next tensor of that size would not fit there any more.
#pragma once

#include <cstddef>
#include <mutex>
#include <new>

namespace anydevice {

template <typename T>
class Slab {
 public:
  static void* take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_ != nullptr) {
      Slot* slot = free_;
      free_ = slot->next;
      return slot;
    }
    if (fresh_ == end_) {
      fresh_ = static_cast<Slot*>(::operator new(slots * sizeof(Slot), align));
      end_ = fresh_ + slots;
    }
    return fresh_++;
  }

  static void give(void* object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* slot = static_cast<Slot*>(object);
    slot->next = free_;
    free_ = slot;
  }

 private:
  union Slot {
    Slot* next;
    alignas(T) std::byte object[sizeof(T)];
  };
  // Large enough for malloc to map it apart, and the system gives pages only as they are touched.
  static constexpr size_t slots = (size_t{1} << 20) / sizeof(Slot);
  static constexpr std::align_val_t align{alignof(Slot)};

  inline static std::mutex mutex_;
  inline static Slot* free_ = nullptr;
  inline static Slot* fresh_ = nullptr;
  inline static Slot* end_ = nullptr;
};

// For containers whose nodes are allocated one by one.
template <typename T>
struct SlabAllocator {
  using value_type = T;
  SlabAllocator() = default;
  template <typename U>
  SlabAllocator(const SlabAllocator<U>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(size_t) { return static_cast<T*>(Slab<T>::take()); }
  void deallocate(T* object, size_t) { Slab<T>::give(object); }
  template <typename U>
  bool operator==(const SlabAllocator<U>&) const {
    return true;
  }
  template <typename U>
  bool operator!=(const SlabAllocator<U>&) const {
    return false;
  }
};

}  // namespace anydevice
