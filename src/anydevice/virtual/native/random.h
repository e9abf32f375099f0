// The generator of a virtual GPU, and the one way to draw from it.
//
// What agrees with a card of the same seed, offset, number of multiprocessors and threads for each:
// - bit for bit: rand and uniform_ (all dtypes), randint and random_, bernoulli (one probability or
// a
//   tensor of them), dropout, rrelu, randperm; of multinomial with replacement the words drawn;
// - but for the last digits, since the card's fast sine, logarithm and exponential cannot be had:
//   randn and normal_ (about 1e-6 absolute), log_normal_, exponential_, cauchy_; geometric_, gamma,
//   Dirichlet, binomial, Poisson and multinomial where such a digit decides;
// - not at all, but from a stream of the generator's own (same seed, same numbers): Poisson with
// rates
//   from 64 to 4000, and every op that draws in a kernel not written out here (cpu_stream).
// The offset after each op is the card's in every case but the last.
#pragma once

#include "anydevice.h"
#include "philox.h"

#include <ATen/core/Generator.h>

namespace anydevice::random {

class CudaGenerator final : public c10::GeneratorImpl {
 public:
  struct State : c10::intrusive_ptr_target {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };

  explicit CudaGenerator(DeviceIndex device,
                         c10::intrusive_ptr<State> state = c10::make_intrusive<State>());

  static c10::DeviceType device_type() { return c10::kCUDA; }

  // Where a kernel starts; the next one starts `increment` later, rounded up to a multiple of 4.
  Philox advance(uint64_t increment);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& tensor) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

 private:
  CudaGenerator* clone_impl() const override;

  c10::intrusive_ptr<State> state_;
};

using MaybeGenerator = std::optional<at::Generator>;

// From the generator given, or the device's default one. Throws if it is not a CUDA generator.
Philox draw(const MaybeGenerator& generator, DeviceIndex device, int64_t increment);

inline Launch launch(int64_t numel, int unroll, DeviceIndex device) {
  const auto& gpu = machine.gpu[device];
  return {numel, unroll, gpu.multiprocessors, gpu.threads_per_multiprocessor};
}

}  // namespace anydevice::random
