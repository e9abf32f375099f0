// The host's generator, further on: as if numbers had been drawn that nobody looks at.
#include "anydevice.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace anydevice {
namespace {

// Mersenne Twister 19937 as torch.get_rng_state() writes it down.
constexpr size_t length = 624, apart = 397;

struct HostState {
  uint64_t seed;
  int32_t left;  // draws until the numbers are made anew, with that one
  int32_t seeded;
  uint64_t next;
  std::array<uint64_t, length> numbers;
};

using Numbers = std::array<uint32_t, 2 * length>;  // those of now, and the next ones

// A number depends on one 227 before it at the nearest, so several can be made at a time.
void make_anew(Numbers& number) {
  std::copy(number.begin() + length, number.end(), number.begin());
  for (size_t i = 0; i < length; ++i) {
    const uint32_t joined = (number[i] & 0x80000000U) | (number[i + 1] & 0x7fffffffU);
    number[i + length] = number[i + apart] ^ (joined >> 1) ^ (-(joined & 1U) & 0x9908b0dfU);
  }
}

}  // namespace

// `state` is what torch.get_rng_state() returned; it is changed in place.
ANYDEVICE_API void anydevice_skip_draws(HostState* state, uint64_t draws) {
  const auto left = static_cast<uint64_t>(state->left);
  if (draws < left) {
    state->left -= static_cast<int32_t>(draws);
    state->next += draws;
    return;
  }
  Numbers number;
  std::copy(state->numbers.begin(), state->numbers.end(), number.begin() + length);
  draws -= left;
  make_anew(number);
  for (; draws >= length; draws -= length) {
    make_anew(number);
  }
  std::copy(number.begin() + length, number.end(), state->numbers.begin());
  state->left = static_cast<int32_t>(length - draws);
  state->next = 1 + draws;
}

}  // namespace anydevice
