#include "known.h"

namespace anydevice::known {
namespace {

constexpr size_t most_bytes = 1 << 16;

bool is_whole(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && !tensor.is_quantized() &&
         at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

Block* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return nullptr;
  }
  auto& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.cast_context<Block>(&release_block);
}

// The part of a block's known bytes that the tensor shows.
at::Tensor view(Block& block, const at::Tensor& tensor) {
  auto* begin = block.known.data() + tensor.storage_offset() * tensor.element_size();
  return at::from_blob(begin, tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()));
}

bool is_within(const Block& block, const at::Tensor& tensor) {
  return tensor.numel() == 0 ||
         tensor.storage().nbytes() <= block.known.size();  // it may have been resized
}

}  // namespace

std::optional<at::Tensor> values(const at::Tensor& tensor) {
  if (!is_whole(tensor)) {
    return std::nullopt;
  }
  if (tensor.is_cpu()) {
    return tensor.nbytes() <= most_bytes ? std::optional(tensor) : std::nullopt;
  }
  auto* block = tensor.is_cuda() ? block_of(tensor) : nullptr;
  if (block == nullptr || block->known.empty() || !is_within(*block, tensor)) {
    return std::nullopt;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return view(*block, tensor).clone();
}

void write(const at::Tensor& tensor, const std::optional<at::Tensor>& values) {
  auto* block = block_of(tensor);
  if (block == nullptr || (!values && block->known.empty())) {
    return;
  }
  const auto bytes = tensor.storage().nbytes();
  if (!values || !is_whole(tensor) || bytes > most_bytes) {
    block->known.clear();
    return;
  }
  block->known.resize(bytes);
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool same = values->numel() == tensor.numel();
  view(*block, tensor).copy_(same ? values->reshape(tensor.sizes()) : *values);
}

}  // namespace anydevice::known
