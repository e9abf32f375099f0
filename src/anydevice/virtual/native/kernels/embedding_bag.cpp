// embedding_bag: the CPU leaves out what its backward pass can find again, a card returns it.
#include "kernel.h"

namespace anydevice::kernels {
namespace {

using Bags = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr int64_t sum = 0, maximum = 2;  // the modes

// In which bag each index is.
Tensor bag_of_each(const Tensor& indices, const Tensor& begins) {
  const auto each = at::arange(indices.numel(), begins.options());
  return (at::searchsorted(begins, each, /*out_int32=*/false, /*right=*/true) - 1)
      .to(indices.scalar_type());
}

Bags as_on_a_card(Bags bags, const Tensor& indices, const Tensor& offsets, int64_t mode,
                  bool include_last_offset, int64_t padding_idx) {
  auto& [output, bag_of, sizes, largest] = bags;
  if (machine.hollow) {
    return bags;  // the shapes are a card's already
  }
  const auto bags_here = offsets.numel() - static_cast<int64_t>(include_last_offset);
  if (bag_of.numel() != indices.numel()) {
    bag_of = bag_of_each(indices, offsets.narrow(0, 0, bags_here));
  }
  if (mode == sum) {
    const auto counted = indices.ne(padding_idx).to(bag_of.scalar_type());
    sizes =
        at::zeros(offsets.sizes(), bag_of.options()).scatter_add(0, bag_of.to(at::kLong), counted);
  } else if (sizes.numel() != offsets.numel()) {
    sizes = at::constant_pad_nd(sizes, {0, offsets.numel() - sizes.numel()});
  }
  if (mode != maximum) {
    largest = at::empty({0}, indices.options());
  }
  return bags;
}

template <auto* on_host>
Bags embedding_bag(const Tensor& weight, const Tensor& some_indices, const Tensor& some_offsets,
                   bool scale_grad_by_freq, int64_t mode, bool sparse,
                   const MaybeTensor& per_sample_weights, bool include_last_offset,
                   int64_t padding_idx) {
  const auto type = at::promoteTypes(some_indices.scalar_type(), some_offsets.scalar_type());
  const auto indices = some_indices.to(type), offsets = some_offsets.to(type);
  return as_on_a_card(on_host(weight, indices, offsets, scale_grad_by_freq, mode, sparse,
                              per_sample_weights, include_last_offset, padding_idx),
                      indices, offsets, mode, include_last_offset, padding_idx);
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_embedding_bag", composed<&embedding_bag<&at::_embedding_bag>>());
  m.impl("_embedding_bag_forward_only",
         composed<&embedding_bag<&at::_embedding_bag_forward_only>>());
}

}  // namespace anydevice::kernels
