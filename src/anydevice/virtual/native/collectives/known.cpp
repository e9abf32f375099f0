// What hollow GPUs know after a collective, where each rank says what this one says: Note [Known
// values].
#include "dispatch/known.h"
#include "collectives.h"

namespace anydevice::collectives {
namespace {

using Known = std::optional<Tensor>;

Known reduced(const Known& values, const c10d::ReduceOp& op, int ranks) {
  using Op = c10d::ReduceOp;
  if (!values) {
    return values;
  }
  const auto type = values->scalar_type();
  switch (op.op_) {
    case Op::SUM:
      return type == at::kBool ? *values : values->mul(ranks);
    case Op::PRODUCT:
      return type == at::kBool ? *values : values->pow(ranks);
    case Op::BXOR:
      return ranks % 2 == 0 ? at::zeros_like(*values) : *values;
    case Op::AVG:
    case Op::MIN:
    case Op::MAX:
    case Op::BAND:
    case Op::BOR:
      return values;
    default:
      return std::nullopt;
  }
}

// This rank's part of what is cut into one for each.
Known part(const Known& values, int rank, int ranks) {
  const bool even = values && values->numel() % ranks == 0;
  return even ? Known(values->reshape({ranks, -1})[rank]) : std::nullopt;
}

}  // namespace

void know_reduced(const Tensors& tensors, const c10d::ReduceOp& op, int ranks) {
  if (machine.hollow) {
    for (const auto& tensor : tensors) {
      known::write(tensor, reduced(known::values(tensor), op, ranks));
    }
  }
}

void know_part_reduced(const Tensor& output, const Tensor& input, const c10d::ReduceOp& op,
                       int rank, int ranks) {
  if (machine.hollow) {
    known::write(output, reduced(part(known::values(input), rank, ranks), op, ranks));
  }
}

void know_the_same(const Tensors& outputs, const Tensor& input) {
  if (machine.hollow) {
    const auto values = known::values(input);
    for (const auto& output : outputs) {
      known::write(output, output.numel() == input.numel() ? values : std::nullopt);
    }
  }
}

void know_repeated(const Tensor& output, const Tensor& input, int ranks) {
  if (machine.hollow) {
    const auto values = known::values(input);
    known::write(output, values ? Known(values->flatten().repeat(ranks)) : values);
  }
}

void know_exchanged(const Tensor& output, const Tensor& input, bool evenly, int rank, int ranks) {
  if (machine.hollow) {
    const auto mine = evenly ? part(known::values(input), rank, ranks) : Known();
    known::write(output, mine ? Known(mine->repeat(ranks)) : mine);
  }
}

void know_nothing(const Tensors& outputs) {
  if (machine.hollow) {
    for (const auto& output : outputs) {
      known::forget(output);
    }
  }
}

}  // namespace anydevice::collectives
