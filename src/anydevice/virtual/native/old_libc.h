// Comes before every other header (build.py), so that the library loads where the C library is
// older than here: glibc 2.28 and libstdc++ of GCC 8, which are manylinux_2_28's.
//
// A linker takes the newest version of each function. Those below have an older one that does the
// same, or are in headers that can do without what is new.
#pragma once

#include <cstddef>

#if defined(__GLIBCXX__) && defined(__GLIBC__) && defined(__x86_64__)

__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver pthread_once, pthread_once@GLIBC_2.2.5");
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_rdlock, pthread_rwlock_rdlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_wrlock, pthread_rwlock_wrlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_unlock, pthread_rwlock_unlock@GLIBC_2.2.5");
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver log2, log2@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");

#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT  // glibc 2.30

#include <sys/stat.h>

#include <string>

#define ANYDEVICE_OURS __attribute__((weak, visibility("hidden")))

extern "C" {

// Headers of GCC 12 ask it, to count references without atomic operations.
ANYDEVICE_OURS char __libc_single_threaded = 0;

int __fxstat(int version, int descriptor, struct stat* result) noexcept;

ANYDEVICE_OURS int fstat(int descriptor, struct stat* result) noexcept {
  return __fxstat(1, descriptor, result);
}

}  // extern "C"

// std::stringbuf::str() of C++20, as that of C++11: the headers of torch 2.11 call it.
std::string str_of_cpp11(const void* buffer) __asm__(
    "_ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");

std::string str_of_cpp20(const void* buffer) __asm__(
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");

ANYDEVICE_OURS std::string str_of_cpp20(const void* buffer) { return str_of_cpp11(buffer); }

#undef ANYDEVICE_OURS

#endif
