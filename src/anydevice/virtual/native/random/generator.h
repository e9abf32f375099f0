// The generator of a virtual GPU, and the one way to draw from it.
//
// What agrees with a card of the same number of multiprocessors and threads for each, by PyTorch's
// sources:
// - bit for bit: rand and uniform_ (all dtypes), randint and random_, bernoulli (of one probability
//   or of a tensor), dropout, rrelu, randperm; of multinomial with replacement the words drawn;
// - but for the last digits, as the card's fast sine, logarithm and exponential are not available:
//   randn and normal_ (some 1e-6), log_normal_, exponential_, cauchy_; and where such a digit
//   decides, geometric_, gamma, Dirichlet, binomial, Poisson and multinomial;
// - not at all, but repeatable from the seed: Poisson with rates from 64 to 4000, and every op that
//   draws in a kernel not written out here (cpu_stream).
// The generator's offset afterwards is the card's in every case but the last.
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
