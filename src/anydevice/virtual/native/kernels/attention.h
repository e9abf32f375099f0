// What the files of attention share. attention.cpp has the arithmetic, which flash,
// memory-efficient and cuDNN attention have in common; attention_backends.cpp has what each adds
// for autograd; attention_varlen.cpp has sequences of different lengths, laid end to end.
#pragma once

#include "on_host.h"

#include <limits>

namespace anydevice::kernels {

constexpr auto minus_infinity = -std::numeric_limits<double>::infinity();

// ---- dropout (attention.cpp; also that of recurrent networks) ----

// What dropout was drawn with: backward draws the same numbers again.
struct Draw {
  double dropout = 0;
  int64_t seed = 0;
  int64_t offset = 0;
};

// What is left under dropout is multiplied with: 0, or 1 / (1 - dropout).
Tensor dropout_factors(const Tensor& weights, const Draw& drawn);

// ---- the arithmetic, on the host: [B, H, S, D] (attention.cpp) ----

using ThreeGrads = std::tuple<Tensor, Tensor, Tensor>;
using FourGrads = std::tuple<Tensor, Tensor, Tensor, Tensor>;

inline ThreeGrads first_three(const FourGrads& grads) {
  return {std::get<0>(grads), std::get<1>(grads), std::get<2>(grads)};
}

// Returns the output and logsumexp.
std::tuple<Tensor, Tensor> attend(const Tensor& query, const Tensor& keys, const Tensor& values,
                                  const MaybeTensor& bias, bool causal, double scale,
                                  const Draw& drawn);

FourGrads attend_backward(const Tensor& grad_output, const Tensor& query, const Tensor& keys,
                          const Tensor& values, const MaybeTensor& bias, const Tensor& output,
                          const Tensor& logsumexp, bool causal, double scale, const Draw& drawn,
                          bool bias_needed);

// The same order of dimensions in memory as `model` has.
Tensor laid_out_like(const Tensor& model, const Tensor& result);

// ---- seeds and offsets, kept for backward (attention_backends.cpp) ----

// Takes `numbers` random numbers for each thread from the device's generator, as a kernel does.
Draw draw(double dropout, uint64_t numbers, DeviceIndex device);

// Flash attention has no kernel for wider numbers.
void refuse_other_than_half(const Tensor& query);

// One number for memory-efficient attention: on the host, but on the device of `like` while a CUDA
// graph is captured, so that backward finds what the last replay drew.
Tensor kept_number(int64_t value, const Tensor& like);

// Seed and offset on the device, written without a kernel; hollow, there is nothing to write to.
Tensor kept_on_device(std::initializer_list<int64_t> values, IntArrayRef shape, ScalarType type,
                      const Tensor& like);

// What one of the two kept; 0 where that has no bytes.
int64_t number_in(const Tensor& kept, int64_t place = 0);

// ---- what the entries share (attention_backends.cpp) ----

enum class Fused { flash, efficient, cudnn };

// Of a backward pass whose sums have no order, where the program wants to be warned of that.
void warn_of_order(Fused kernel);

using FlashOutputs =
    std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor>;

double scale_of(const Tensor& query, std::optional<double> scale);

// Memory-efficient attention keeps logsumexp in whole blocks of queries.
constexpr int64_t queries_in_block = 32;

inline int64_t in_whole_blocks(int64_t queries) {
  return (queries + queries_in_block - 1) / queries_in_block * queries_in_block;
}

FlashOutputs cudnn(const Tensor& query, const Tensor& key, const Tensor& value,
                   const MaybeTensor& bias, bool compute_logsumexp, double dropout, bool causal,
                   bool return_debug_mask, std::optional<double> scale);

ThreeGrads cudnn_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                          const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                          const Tensor& seed, const Tensor& offset, const Tensor& bias,
                          const Tensor& query_ends, const Tensor& key_ends, SymInt most_queries,
                          SymInt most_keys, double dropout, bool causal,
                          std::optional<double> scale);

// ---- windows and lengths: [B, S, H, D], or [total, H, D] end to end (attention_varlen.cpp) ----

// Which keys a query sees. Flash counts positions from the end of both sequences (bottom right).
struct Window {
  bool causal = false;  // from the top left
  int64_t before = -1;  // keys before and after its own position; -1: all
  int64_t after = -1;
  bool from_end = true;
};

Window flash_window(bool causal, std::optional<SymInt> left, std::optional<SymInt> right);
Window efficient_window(int64_t mask, std::optional<int64_t> size);

std::tuple<Tensor, Tensor> attend_windowed(const Tensor& query, const Tensor& key,
                                           const Tensor& value, const MaybeTensor& bias,
                                           const MaybeTensor& slopes, const Window& window,
                                           double scale, const Draw& drawn);

FourGrads attend_windowed_backward(const Tensor& grad_output, const Tensor& query,
                                   const Tensor& key, const Tensor& value, const MaybeTensor& bias,
                                   const Tensor& output, const Tensor& logsumexp,
                                   const Window& window, double scale, const Draw& drawn,
                                   bool bias_needed);

// Each sequence by itself; logsumexp is [H, total].
std::tuple<Tensor, Tensor> attend_each(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const Tensor& query_ends, const Tensor& key_ends,
                                       const MaybeTensor& keys_used, const MaybeTensor& slopes,
                                       const Window& window, double scale, const Draw& drawn);

ThreeGrads attend_each_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                                const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                                const Tensor& query_ends, const Tensor& key_ends,
                                const Window& window, double scale, const Draw& drawn);

// logsumexp as [B, H, whole blocks of queries], as memory-efficient attention keeps it, and back.
Tensor by_sequence(const Tensor& logsumexp, const Tensor& query_ends, int64_t most);
Tensor end_to_end(const Tensor& by_sequence, const Tensor& query_ends, int64_t total);

}  // namespace anydevice::kernels
