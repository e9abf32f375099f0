// Hollow GPUs only: the shapes of ops on each element, or on each row, of a tensor (meta.cpp).
#include "meta.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtilsMulti.h>

namespace anydevice::meta {
namespace {

using MaybeScalar = std::optional<Scalar>;

Tensor abs(const Tensor& self) { return at::meta::neg(self); }

Tensor where_true(const Tensor& condition, const Tensor& self, const Tensor& other) {
  auto iterator = at::TensorIteratorConfig()
                      .check_all_same_dtype(false)
                      .declare_static_dtype(self.scalar_type())
                      .add_owned_output(Tensor())
                      .add_const_input(condition)
                      .add_const_input(self)
                      .add_const_input(other)
                      .build();
  return iterator.output();
}

Tensor masked_fill(const Tensor& self, const Tensor& mask, const Scalar& /*value*/) {
  return at::empty(at::infer_size(self.sizes(), mask.sizes()), self.options());
}

// Those that only write to the first argument, whose shape the others may not change.
Tensor& masked_fill_(Tensor& self, const Tensor& mask, const Scalar& /*value*/) {
  mask.expand(self.sizes());  // or throws
  return self;
}

Tensor& fill_(Tensor& self, const Scalar& /*value*/) { return self; }

Tensor& zero_(Tensor& self) { return self; }

Tensor reduced(const Tensor& self, at::OptionalIntArrayRef dim, bool keep) {
  const auto some = dim && !dim->empty();
  const auto mask = at::dim_list_to_bitset(some ? *dim : at::IntArrayRef{}, self.dim());
  std::vector<int64_t> shape;
  for (int64_t place = 0; place < self.dim(); ++place) {
    const bool gone = !some || mask[static_cast<size_t>(place)];
    if (!gone || keep) {
      shape.push_back(gone ? 1 : self.size(place));
    }
  }
  return at::empty(shape, self.options());
}

Tensor variance(const Tensor& self, at::OptionalIntArrayRef dim, const MaybeScalar& /*correction*/,
                bool keep) {
  return reduced(self, dim, keep);
}

std::tuple<Tensor, Tensor> variance_and_mean(const Tensor& self, at::OptionalIntArrayRef dim,
                                             const MaybeScalar& /*correction*/, bool keep) {
  return {reduced(self, dim, keep), reduced(self, dim, keep)};
}

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t /*padding*/, bool /*scaled*/,
                 bool /*sparse*/) {
  auto shape = indices.sizes().vec();
  shape.push_back(weight.size(1));
  return at::empty(shape, weight.options());
}

void list_of_one(Table& table) {
  const auto add = [&](const char* name, auto kernel) { table.emplace(name, std::move(kernel)); };
  add("exp", kernel<&at::meta::exp>(&first_is_dense));
  add("expm1", kernel<&at::meta::expm1>(&first_is_dense));
  add("sqrt", kernel<&at::meta::sqrt>(&first_is_dense));
  add("log", kernel<&at::meta::log>(&first_is_dense));
  add("log1p", kernel<&at::meta::log1p>(&first_is_dense));
  add("log2", kernel<&at::meta::log2>(&first_is_dense));
  add("sin", kernel<&at::meta::sin>(&first_is_dense));
  add("cos", kernel<&at::meta::cos>(&first_is_dense));
  add("erf", kernel<&at::meta::erf>(&first_is_dense));
  add("reciprocal", kernel<&at::meta::reciprocal>(&first_is_dense));
  add("neg", kernel<&at::meta::neg>());
  add("abs", kernel<&abs>());
  add("floor", kernel<&at::meta::floor>());
  add("sign", kernel<&at::meta::sign>());
  add("mish", kernel<&at::meta::mish>());
  add("elu", kernel<&at::meta::elu>());
  add("elu_backward", kernel<&at::meta::elu_backward>(&of_one_type));
  add("leaky_relu", kernel<&at::meta::leaky_relu>());
  add("leaky_relu_backward", kernel<&at::meta::leaky_relu_backward>(&of_one_type));
  add("softplus", kernel<&at::meta::softplus>());
  add("softplus_backward", kernel<&at::meta::softplus_backward>(&of_one_type));
  add("zero_", kernel<&zero_>(&first_is_dense));
  add("fill_.Scalar", kernel<&fill_>());
}

using Clamp = Tensor(const Tensor&, const MaybeScalar&, const MaybeScalar&);
using Lerp = Tensor(const Tensor&, const Tensor&, const Scalar&);
using InPlace = Tensor&(Tensor&, const Tensor&);
using InPlaceWithAlpha = Tensor&(Tensor&, const Tensor&, const Scalar&);

void list_of_two(Table& table) {
  const auto add = [&](const char* name, auto kernel) { table.emplace(name, std::move(kernel)); };
  add("eq.Scalar", kernel<static_cast<WithScalar*>(&at::meta::eq)>(&first_is_dense));
  add("eq.Tensor", kernel<static_cast<OfTwo*>(&at::meta::eq)>(&all_are_dense));
  add("ne.Scalar", kernel<static_cast<WithScalar*>(&at::meta::ne)>(&first_is_dense));
  add("ne.Tensor", kernel<static_cast<OfTwo*>(&at::meta::ne)>(&all_are_dense));
  add("lt.Scalar", kernel<static_cast<WithScalar*>(&at::meta::lt)>());
  add("lt.Tensor", kernel<static_cast<OfTwo*>(&at::meta::lt)>(&of_one_type));
  add("le.Scalar", kernel<static_cast<WithScalar*>(&at::meta::le)>());
  add("le.Tensor", kernel<static_cast<OfTwo*>(&at::meta::le)>(&of_one_type));
  add("gt.Scalar", kernel<static_cast<WithScalar*>(&at::meta::gt)>());
  add("gt.Tensor", kernel<static_cast<OfTwo*>(&at::meta::gt)>(&of_one_type));
  add("ge.Scalar", kernel<static_cast<WithScalar*>(&at::meta::ge)>());
  add("ge.Tensor", kernel<static_cast<OfTwo*>(&at::meta::ge)>(&of_one_type));
  add("maximum", kernel<&at::meta::maximum>(&of_one_type));
  add("minimum", kernel<&at::meta::minimum>(&of_one_type));
  add("clamp", kernel<static_cast<Clamp*>(&at::meta::clamp)>());
  add("clamp_min", kernel<static_cast<WithScalar*>(&at::meta::clamp_min)>());
  add("clamp_max", kernel<static_cast<WithScalar*>(&at::meta::clamp_max)>());
  add("addcmul", kernel<&at::meta::addcmul>(&of_one_type));
  add("addcdiv", kernel<&at::meta::addcdiv>(&of_one_type));
  add("lerp.Scalar", kernel<static_cast<Lerp*>(&at::meta::lerp)>(&of_one_type));
  add("where.self", kernel<&where_true>(&chooses_of_one_type));
  add("masked_fill.Scalar", kernel<&masked_fill>(&is_masked));
  add("masked_fill_.Scalar", kernel<&masked_fill_>(&is_masked));
  add("add_.Tensor", kernel<static_cast<InPlaceWithAlpha*>(&at::meta::add_)>(&of_one_type));
  add("sub_.Tensor", kernel<static_cast<InPlaceWithAlpha*>(&at::meta::sub_)>(&of_one_type));
  add("mul_.Tensor", kernel<static_cast<InPlace*>(&at::meta::mul_)>(&of_one_type));
  add("div_.Tensor", kernel<static_cast<InPlace*>(&at::meta::div_)>(&of_one_type));
}

bool is_index(const c10::IValue& value) {
  return first_is_dense(value) && value.toTensor().scalar_type() == at::kLong;
}

bool has_indices(Arguments arguments) {
  return first_is_dense(arguments) && is_index(arguments[2]);
}

bool has_places(Arguments arguments) {
  const auto list = arguments[1].toListRef();
  return first_is_dense(arguments) && std::all_of(list.begin(), list.end(), [](const auto& value) {
           return value.isNone() || is_index(value);
         });
}

void list_of_rows(Table& table) {
  const auto add = [&](const char* name, auto kernel) { table.emplace(name, std::move(kernel)); };
  add("_softmax", kernel<&at::meta::_softmax>());
  add("_log_softmax", kernel<&at::meta::_log_softmax>());
  add("_softmax_backward_data", kernel<&at::meta::_softmax_backward_data>());
  add("_log_softmax_backward_data", kernel<&at::meta::_log_softmax_backward_data>());
  add("amax", kernel<&at::meta::amax>());
  add("amin", kernel<&at::meta::amin>());
  add("argmax", kernel<&at::meta::argmax>());
  add("topk", kernel<&at::meta::topk>());
  add("cumsum", kernel<&at::meta::cumsum>());
  add("linalg_vector_norm", kernel<&at::meta::linalg_vector_norm>());
  add("var.correction", kernel<&variance>());
  add("std.correction", kernel<&variance>());
  add("var_mean.correction", kernel<&variance_and_mean>());
  add("std_mean.correction", kernel<&variance_and_mean>());
  add("embedding", kernel<&embedding>(&is_table));
  add("gather", kernel<&at::meta::gather>(&has_indices));
  add("index.Tensor", kernel<&at::meta::index>(&has_places));
}

void list_of_images(Table& table) {
  const auto add = [&](const char* name, auto kernel) { table.emplace(name, std::move(kernel)); };
  add("avg_pool2d", kernel<&at::meta::avg_pool2d>());
  add("avg_pool2d_backward", kernel<&at::meta::avg_pool2d_backward>());
  add("max_pool2d_with_indices", kernel<&at::meta::max_pool2d_with_indices>());
  add("max_pool2d_with_indices_backward", kernel<&at::meta::max_pool2d_with_indices_backward>());
  add("upsample_nearest2d", kernel<&at::meta::upsample_nearest2d>());
  add("upsample_nearest2d_backward", kernel<&at::meta::upsample_nearest2d_backward>());
  add("upsample_bilinear2d", kernel<&at::meta::upsample_bilinear2d>());
  add("upsample_bilinear2d_backward", kernel<&at::meta::upsample_bilinear2d_backward>());
}

}  // namespace

void list_elements(Table& table) {
  list_of_images(table);
  list_of_one(table);
  list_of_two(table);
  list_of_rows(table);
}

}  // namespace anydevice::meta
