// Ops that CUDA computes for types the CPU's kernels do not have: half and bfloat16 by way of
// float, half-precision complex numbers by way of complex64, then rounded back.
#include "wider.h"

#include "kernel.h"

#include <algorithm>
#include <string_view>

namespace anydevice::kernels {
namespace {

using torch::jit::Stack;

ScalarType wider(ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat
         : type == at::kComplexHalf                 ? at::kComplexFloat
                                                    : type;
}

// The type to compute in. Truth values are numbers where the first tensor holds such.
ScalarType wide_enough(ScalarType type, std::optional<ScalarType> first) {
  return type == at::kBool && first == at::kBool ? at::kInt : wider(type);
}

// What a wide result is rounded to: the narrow type among the arguments.
ScalarType narrower(ScalarType result, ScalarType narrow) {
  if (narrow == at::kBool) {
    return result == at::kInt ? at::kBool : result;
  }
  if (result == at::kComplexFloat) {  // of bfloat16 there are no complex numbers
    return narrow == at::kBFloat16 ? result : at::kComplexHalf;
  }
  return result != at::kFloat ? result : narrow == at::kBFloat16 ? at::kBFloat16 : at::kHalf;
}

struct Widened {
  Tensor original, wide;
};

}  // namespace

// Convolutions most of all: backward takes some 100 times as long in half as in float32.
Slow slow_in(const std::string& op) {
  constexpr std::string_view in_half =
      " convolution convolution_backward convolution_overrideable mm mm.out addmm addmm.out addmm_ "
      "bmm bmm.out baddbmm baddbmm.out baddbmm_ pow.Tensor_Scalar pow.Tensor_Scalar_out "
      "pow_.Scalar logit logit.out logit_ native_group_norm "
      "binary_cross_entropy binary_cross_entropy.out "
      "binary_cross_entropy_backward binary_cross_entropy_backward.grad_input ";
  constexpr std::string_view in_both =
      " dot dot.out vdot vdot.out addmv addmv.out addmv_ addr addr.out addr_ erfinv erfinv.out "
      "erfinv_ erfc erfc.out erfc_ tan tan.out tan_ tanh tanh.out tanh_ grid_sampler_2d "
      "grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward sort sort.stable "
      "sort.values_stable ";
  const auto name = " " + op + " ";
  return in_half.find(name) != in_half.npos   ? Slow::in_half
         : in_both.find(name) != in_both.npos ? Slow::in_both
                                              : Slow::never;
}

// Where types are mixed the CPU's kernel decides what it takes.
bool is_slow(Slow slow, const c10::IValue* arguments, size_t count) {
  std::optional<ScalarType> type;
  for (const auto* value = arguments; value != arguments + count; ++value) {
    if (!value->isTensor() || !value->toTensor().defined()) {
      continue;
    }
    const auto its = value->toTensor().scalar_type();
    if (at::isFloatingType(its) && type.value_or(its) != its) {
      return false;
    }
    type = at::isFloatingType(its) ? its : type;
  }
  return type == at::kHalf || (slow == Slow::in_both && type == at::kBFloat16);
}

// Calls the op on wide copies of its narrow arguments; what it wrote to them is carried back.
void call_wide(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  std::vector<Widened> copies;
  std::optional<ScalarType> narrow, first;
  auto* arguments = stack->data() + stack->size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (arguments[i].isTensor() && arguments[i].toTensor().defined()) {
      const auto original = arguments[i].toTensor();
      const auto type = original.scalar_type();
      first = first.value_or(type);
      if (const auto wide = wide_enough(type, first); wide != type) {
        narrow = narrow.value_or(type);
        copies.push_back({original, original.to(wide)});
        arguments[i] = copies.back().wide;
      }
    }
  }
  op.callBoxed(stack);
  if (!narrow) {
    return;
  }
  auto* results = stack->data() + stack->size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (!results[i].isTensor() || !results[i].toTensor().defined()) {
      continue;
    }
    const auto result = results[i].toTensor();
    const auto written = std::find_if(copies.begin(), copies.end(), [&](const Widened& copy) {
      return copy.wide.is_same(result);
    });
    if (written != copies.end()) {
      write(written->original, result);
      results[i] = written->original;
    } else {
      results[i] = result.to(narrower(result.scalar_type(), *narrow));
    }
  }
}

namespace {

// cuFFT's half-precision plans.
void check_powers_of_two(const Tensor& signal, IntArrayRef dims, int64_t last_size = 0) {
  for (size_t place = 0; place < dims.size(); ++place) {
    const bool last = place + 1 == dims.size();
    const auto size = last && last_size > 0 ? last_size : signal.size(dims[place]);
    TORCH_CHECK((size & (size - 1)) == 0,
                "cuFFT only supports dimensions whose sizes are powers of two when computing in ",
                signal.scalar_type() == at::kBFloat16 ? "bfloat16" : "half",
                " precision, but got a signal size of", signal.sizes());
  }
}

void fft_wide(const c10::OperatorHandle& op, Stack* stack) {
  const auto* arguments = stack->data() + stack->size() - op.schema().arguments().size();
  const auto signal = arguments[0].toTensor();
  if (wider(signal.scalar_type()) != signal.scalar_type()) {
    const bool to_real = op.schema().name() == "aten::_fft_c2r";
    const auto last_size = to_real ? arguments[3].toSymInt().expect_int() : 0;
    check_powers_of_two(signal, arguments[1].toIntVector(), last_size);
  }
  call_wide(op, stack);
}

template <void (*kernel)(const c10::OperatorHandle&, Stack*)>
Kernel wide(std::vector<const char*> arguments = {}) {
  return {aliased(c10::KernelFunction::makeFromBoxedFunction<kernel>()), std::move(arguments), -1};
}

// ---- types of which only the result is another ----

Tensor histogram(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max) {
  const bool whole = at::isIntegralType(self.scalar_type(), /*includeBool=*/false);
  return at::histc(whole ? self.to(at::kDouble) : self, bins, min, max).to(self.scalar_type());
}

Tensor& histogram_out(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max,
                      Tensor& out) {
  return write(out, histogram(self, bins, min, max));
}

Tensor sum_of_numbers(const Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                      std::optional<ScalarType> type) {
  if (!self.is_complex()) {
    return at::nansum(self, dims, keepdim, type);
  }
  const auto wide = self.to(wider(self.scalar_type()));
  const auto numbers = at::where(wide.isnan(), at::zeros({}, wide.options()), wide);
  return numbers.sum(dims, keepdim, type).to(type.value_or(self.scalar_type()));
}

Tensor& sum_of_numbers_out(const Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                           std::optional<ScalarType> type, Tensor& out) {
  return write(out, sum_of_numbers(self, dims, keepdim, type));
}

Tensor magnitude(const Tensor& self) {
  return self.scalar_type() == at::kBool ? self.clone() : at::abs(self);
}

Tensor& magnitude_out(const Tensor& self, Tensor& out) {
  return self.scalar_type() == at::kBool ? write(out, self) : at::abs_out(out, self);
}

std::vector<Tensor> magnitudes(TensorList tensors) {
  std::vector<Tensor> results(tensors.size());
  std::transform(tensors.begin(), tensors.end(), results.begin(), &magnitude);
  return results;
}

void magnitudes_in_place(TensorList tensors) {
  for (const auto& tensor : tensors) {
    if (tensor.scalar_type() != at::kBool) {
      tensor.abs_();
    }
  }
}

// Neither warns, on a card, that it resizes an output.
Tensor& cumulative_out(const Tensor& self, int64_t dim, Tensor& out) {
  out.resize_(self.sizes());
  return at::_logcumsumexp_out(out, self, dim);
}

Tensor& identity_out(int64_t rows, int64_t columns, Tensor& out) {
  TORCH_CHECK(rows >= 0, "n must be greater or equal to 0, got ", rows);
  TORCH_CHECK(columns >= 0, "m must be greater or equal to 0, got ", columns);
  out.resize_({rows, columns});
  out.zero_().diagonal().fill_(1);
  return out;
}

// ---- whole numbers that are only moved ----

Tensor as_fractions(const Tensor& whole) {
  return whole.scalar_type() == at::kLong ? whole.contiguous().view(at::kDouble)
                                          : whole.to(at::kDouble);
}

Tensor from_fractions(const Tensor& moved, ScalarType type) {
  return type == at::kLong ? moved.view(at::kLong) : moved.to(type);
}

bool is_whole(const Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
}

// Never channels last on a card.
Tensor unpool2d(const Tensor& self, const Tensor& indices, IntArrayRef size) {
  const auto maxima = self.contiguous(), places = indices.contiguous();
  return is_whole(self) ? from_fractions(at::max_unpool2d(as_fractions(maxima), places, size),
                                         self.scalar_type())
                        : at::max_unpool2d(maxima, places, size);
}

Tensor& unpool2d_out(const Tensor& self, const Tensor& indices, IntArrayRef size, Tensor& out) {
  return is_whole(self) ? write(out, unpool2d(self, indices, size))
                        : at::max_unpool2d_out(out, self, indices, size);
}

Tensor unpool3d(const Tensor& self, const Tensor& indices, IntArrayRef size, IntArrayRef stride,
                IntArrayRef padding) {
  return is_whole(self)
             ? from_fractions(at::max_unpool3d(as_fractions(self), indices, size, stride, padding),
                              self.scalar_type())
             : at::max_unpool3d(self, indices, size, stride, padding);
}

Tensor& unpool3d_out(const Tensor& self, const Tensor& indices, IntArrayRef size,
                     IntArrayRef stride, IntArrayRef padding, Tensor& out) {
  return is_whole(self) ? write(out, unpool3d(self, indices, size, stride, padding))
                        : at::max_unpool3d_out(out, self, indices, size, stride, padding);
}

Tensor sum_of_diagonal(const Tensor& self) {
  return self.scalar_type() == at::kBool ? self.diagonal().sum() : at::trace(self);
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  for (const auto* name : {"round.decimals",
                           "round_.decimals",
                           "round.decimals_out",
                           "multi_margin_loss",
                           "multi_margin_loss.out",
                           "multi_margin_loss_backward",
                           "multi_margin_loss_backward.grad_input",
                           "multilabel_margin_loss_forward",
                           "multilabel_margin_loss_forward.output",
                           "multilabel_margin_loss_backward",
                           "multilabel_margin_loss_backward.grad_input",
                           "avg_pool3d",
                           "avg_pool3d.out",
                           "avg_pool3d_backward",
                           "avg_pool3d_backward.grad_input",
                           "_upsample_bilinear2d_aa",
                           "_upsample_bilinear2d_aa.out",
                           "_upsample_bilinear2d_aa_backward",
                           "_upsample_bilinear2d_aa_backward.grad_input",
                           "_upsample_bicubic2d_aa",
                           "_upsample_bicubic2d_aa.out",
                           "_upsample_bicubic2d_aa_backward",
                           "_upsample_bicubic2d_aa_backward.grad_input"}) {
    m.impl(name, wide<&call_wide>());
  }
  for (const auto* name :
       {"_fft_r2c", "_fft_r2c.out", "_fft_c2r", "_fft_c2r.out", "_fft_c2c", "_fft_c2c.out"}) {
    m.impl(name, wide<&fft_wide>({"self", "dim"}));
  }
  m.impl("histc", composed<&histogram>());
  m.impl("histc.out", composed<&histogram_out>());
  m.impl("nansum", composed<&sum_of_numbers>());
  m.impl("nansum.out", composed<&sum_of_numbers_out>());
  m.impl("abs", composed<&magnitude>());
  m.impl("abs.out", composed<&magnitude_out>());
  m.impl("_foreach_abs", composed<&magnitudes>());
  m.impl("_foreach_abs_", composed<&magnitudes_in_place>());
  m.impl("eye.m_out", composed<&identity_out>());
  m.impl("_logcumsumexp.out", composed<&cumulative_out>());
  m.impl("max_unpool2d", composed<&unpool2d>());
  m.impl("max_unpool2d.out", composed<&unpool2d_out>());
  m.impl("max_unpool3d", composed<&unpool3d>());
  m.impl("max_unpool3d.out", composed<&unpool3d_out>());
  m.impl("trace", composed<&sum_of_diagonal>());
}

}  // namespace anydevice::kernels
