// Small objects apart from the heap, where they would settle in the holes that freed
// tensors leave, and the next tensor of that size would not fit there any more.
#pragma once

#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

namespace anydevice {

template <typename T>
class Slab {
 public:
  static void* take() {
    if (auto& mine = mine_; mine.free != nullptr) {
      --mine.count;
      return pop(mine.free);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_ != nullptr) {
      return pop(free_);
    }
    if (fresh_ == end_) {
      fresh_ = static_cast<Slot*>(::operator new(slots * sizeof(Slot), align));
      end_ = fresh_ + slots;
    }
    return fresh_++;
  }

  static void give(void* object) {
    auto* slot = static_cast<Slot*>(object);
    if (auto& mine = mine_; mine.count < most_of_a_thread) {
      if (mine.count++ == 0) [[unlikely]] {
        give_back_at_exit();
      }
      return push(mine.free, slot);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    push(free_, slot);
  }

 private:
  union Slot {
    Slot* next;
    alignas(T) std::byte object[sizeof(T)];
  };

  static Slot* pop(Slot*& list) { return std::exchange(list, list->next); }
  static void push(Slot*& list, Slot* slot) {
    slot->next = list;
    list = slot;
  }

  // What a thread gave back last, for it to take without the lock. Of a type that needs no
  // destructor, which the compiler would look after at each use.
  struct Mine {
    Slot* free = nullptr;
    int count = 0;
  };

  // As the thread ends: for others.
  struct AtExit {
    AtExit() = default;
    ~AtExit() {
      auto& mine = mine_;
      const std::lock_guard<std::mutex> lock(mutex_);
      while (mine.free != nullptr) {
        push(free_, pop(mine.free));
      }
      mine.count = most_of_a_thread;  // what comes later goes to the others
    }
    AtExit(const AtExit&) = delete;
    AtExit& operator=(const AtExit&) = delete;
  };
  static void give_back_at_exit() { static const thread_local AtExit instance; }
  static constexpr int most_of_a_thread = 32;

  // Large enough for malloc to map it apart, and the system gives pages only as they are touched.
  static constexpr size_t slots = (size_t{1} << 20) / sizeof(Slot);
  static constexpr std::align_val_t align{alignof(Slot)};

  inline static std::mutex mutex_;
  inline static Slot* free_ = nullptr;
  inline static Slot* fresh_ = nullptr;
  inline static Slot* end_ = nullptr;
  constinit inline static thread_local Mine mine_{};
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
