// The backend: what is asked of it is checked, aliased and put on its stream. What is only moved
// goes as bytes, so that every dtype passes; what is reduced keeps its dtype.
#include "collectives.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace anydevice::collectives {
namespace {

using c10d::OpType;

// All elements of a dense tensor in a row, as they lie in memory; complex ones as pairs.
Tensor flat(const Tensor& alias) {
  const at::AutoDispatchBelowADInplaceOrView below;
  auto elements = alias.is_complex() ? at::view_as_real(alias) : alias;
  elements = elements.as_strided({elements.numel()}, {1});
  return elements.scalar_type() == at::kBool ? elements.view(at::kByte) : elements;
}

Tensor bytes(const Tensor& alias) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return flat(alias).view(at::kByte);
}

Tensors bytes(const Tensors& aliases) {
  Tensors rows;
  for (const auto& alias : aliases) {
    rows.push_back(bytes(alias));
  }
  return rows;
}

// The group's splits of the first dimension, in bytes.
Lengths byte_splits(const Lengths& splits, const Tensor& tensor, int ranks) {
  c10d::checkSplitSizes(splits, tensor, ranks);
  const auto rows = tensor.size(0);
  const auto row = rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / rows;
  Lengths each;
  for (int i = 0; i < ranks; ++i) {
    each.push_back(row * (splits.empty() ? rows / ranks : splits[i]));
  }
  return each;
}

std::atomic<bool> nan_check{false};

class Backend final : public c10d::Backend {
 public:
  Backend(std::shared_ptr<Group> group, std::string name)
      : c10d::Backend(group->rank(), group->size()),
        group_(std::move(group)),
        name_(std::move(name)),
        nccl_(name_ == "nccl") {}

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(name_, group_->timeout());
  }
  void setTimeout(Milliseconds timeout) override { group_->set_timeout(timeout); }
  bool supportsSplitting() const override { return nccl_; }
  bool supportsCoalescing() const override { return nccl_; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return asked_; }
  void enableCollectivesTiming() override {}
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  void waitForPendingWorks() override { stream_.drain(); }
  void shutdown() override {
    stream_.drain();
    closed_ = true;
  }
  void abort() override {
    stream_.abandon();
    closed_ = true;
  }

  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override {
    count_split();
    auto part = group_->split(store, ranks, options);
    return part ? BackendPtr(c10::make_intrusive<Backend>(part, name_)) : BackendPtr();
  }

  // Communicators that were made from this one's, by all of its ranks, members or not.
  void count_split() { ++splits_; }
  int64_t splits() const { return splits_; }

  // ---- the same everywhere ----

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& given) override {
    auto data = bytes(alias_of(only_one(tensors)));
    check_numbers(getRank() == given.rootRank ? tensors : Tensors{});
    return ask(OpType::BROADCAST, tensors,
               [=, group = group_] { group->broadcast(data, given.rootRank, given.timeout); });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& given) override {
    only_one(tensors);
    return reduce_everywhere(OpType::ALLREDUCE, tensors, given);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& given) override {
    return reduce_everywhere(OpType::ALLREDUCE_COALESCED, tensors, given);
  }

  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override {
    TORCH_CHECK(
        false,
        "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead.");
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& given) override {
    auto values = flat(alias_of(only_one(tensors)));
    const auto how = reduction(given.reduceOp, tensors.front());
    check_numbers(tensors);
    know_reduced(tensors, given.reduceOp, getSize());
    return ask(OpType::REDUCE, tensors,
               [=, group = group_] { group->reduce(values, how, given.rootRank, given.timeout); });
  }

  WorkPtr barrier(const c10d::BarrierOptions& given) override {
    return ask(OpType::BARRIER, {},
               [group = group_, timeout = given.timeout] { group->barrier(timeout); });
  }

  // ---- gathered and scattered ----

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& given) override {
    auto& output = one_list(outputs);
    const auto& input = only_one(inputs);
    check_same_dtype(output, input);
    TORCH_CHECK_VALUE(output[getRank()].numel() == input.numel(), "Tensor sizes must match: rank ",
                      getRank(), " gives ", input.sizes(), " and expects ",
                      output[getRank()].sizes(), " of itself");
    auto mine = bytes(alias_of(input));
    auto theirs = bytes(aliases_of(output));
    check_numbers(inputs);
    know_the_same(output, input);
    return ask(OpType::ALLGATHER, output, [=, group = group_, timeout = given.timeout] {
      group->all_gather(mine, theirs, timeout);
    });
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& given) override {
    Tensors outputs{output}, inputs{input};
    return gather_into(OpType::_ALLGATHER_BASE, outputs, inputs, given.timeout);
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& given) override {
    return gather_into(OpType::COALESCED, outputs, inputs, given.timeout);
  }

  WorkPtr allgather_coalesced(std::vector<Tensors>&, Tensors&,
                              const c10d::AllgatherOptions&) override {
    TORCH_CHECK(false, "ProcessGroupNCCL does not support allgather_coalesced");
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& given) override {
    auto mine = bytes(alias_of(only_one(inputs)));
    check_numbers(inputs);
    const auto results = getRank() == given.rootRank ? one_list(outputs) : Tensors{};
    auto theirs = bytes(aliases_of(results));
    know_the_same(results, inputs.front());
    auto doing = [=, group = group_] {
      group->gather(mine, theirs, given.rootRank, given.timeout);
    };
    return ask(OpType::GATHER, results, doing, inputs);  // the results are the root's alone
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& given) override {
    auto mine = bytes(alias_of(only_one(outputs)));
    const auto parts = getRank() == given.rootRank ? one_list(inputs) : Tensors{};
    auto theirs = bytes(aliases_of(parts));
    check_numbers(parts);
    getRank() == given.rootRank ? know_the_same(outputs, inputs.front()[getRank()])
                                : know_nothing(outputs);
    return ask(OpType::SCATTER, outputs, [=, group = group_] {
      group->scatter(theirs, mine, given.rootRank, given.timeout);
    });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& given) override {
    const auto& input = one_list(inputs);
    const auto& output = only_one(outputs);
    check_same_dtype(input, output);
    TORCH_CHECK_VALUE(input[getRank()].numel() == output.numel(), "Tensor sizes must match: rank ",
                      getRank(), "'s part of the input is ", input[getRank()].sizes(),
                      " and its output ", output.sizes());
    check_numbers(input);
    Tensors rows;
    int64_t begin = 0;
    for (const auto& alias : aliases_of(input)) {
      begin += static_cast<int>(rows.size()) < getRank() ? flat(alias).numel() : 0;
      rows.push_back(flat(alias));
    }
    auto mine = flat(alias_of(output));
    const auto how = reduction(given.reduceOp, output);
    know_the_same(outputs, input[getRank()]);
    know_reduced(outputs, given.reduceOp, getSize());
    return ask(OpType::REDUCE_SCATTER, outputs, [=, group = group_, timeout = given.timeout] {
      group->reduce_scatter(at::cat(rows), mine, begin, how, timeout);
    });
  }

  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& given) override {
    Tensors outputs{output}, inputs{input};
    return scatter_reduced(OpType::_REDUCE_SCATTER_BASE, outputs, inputs, given);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& given) override {
    return scatter_reduced(OpType::COALESCED, outputs, inputs, given);
  }

  // ---- from each to each ----

  WorkPtr alltoall_base(Tensor& output, Tensor& input, Lengths& output_splits,
                        Lengths& input_splits, const c10d::AllToAllOptions& given) override {
    check_same_dtype({input}, output);
    check_numbers({input});
    auto into = bytes(alias_of(output));
    auto from = bytes(alias_of(input));
    auto received = byte_splits(output_splits, output, getSize());
    auto sent = byte_splits(input_splits, input, getSize());
    const bool evenly = input_splits.empty() && output_splits.empty();
    know_exchanged(output, input, evenly, getRank(), getSize());
    return ask(OpType::ALLTOALL_BASE, {output}, [=, group = group_, timeout = given.timeout] {
      group->all_to_all(into, from, received, sent, timeout);
    });
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& given) override {
    check_one_for_each_rank(outputs);
    check_one_for_each_rank(inputs);
    check_numbers(inputs);
    auto into = bytes(aliases_of(outputs));
    auto from = bytes(aliases_of(inputs));
    know_the_same(outputs, inputs[getRank()]);
    return ask(OpType::ALLTOALL, outputs, [=, group = group_, timeout = given.timeout] {
      group->all_to_all(into, from, timeout);
    });
  }

  // ---- between two; NCCL has no tags ----

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    Tensors data{bytes(alias_of(only_one(tensors), /*between_two=*/true))};
    check_numbers(tensors);
    return begin(OpType::SEND, {}, [&] { return group_->gloo().send(data, to, nccl_ ? 0 : tag); });
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    Tensors data{bytes(alias_of(only_one(tensors), /*between_two=*/true))};
    know_nothing(tensors);
    return begin(OpType::RECV, tensors,
                 [&] { return group_->gloo().recv(data, from, nccl_ ? 0 : tag); });
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    TORCH_CHECK(!nccl_, "ProcessGroupNCCL does not support recvAnysource");
    Tensors data{bytes(alias_of(only_one(tensors), /*between_two=*/true))};
    know_nothing(tensors);
    return group_->gloo().recvAnysource(data, tag);  // only its work knows the source
  }

  // ---- several as one ----

  void startCoalescing() override {
    coalescing_ = true;
    together_.clear();
  }

  WorkPtr endCoalescing() override {
    coalescing_ = false;
    return c10::make_intrusive<Asked>(getRank(), OpType::COALESCED, asked_,
                                      std::exchange(together_, {}), Tensors{});
  }

 private:
  WorkPtr hand_out(OpType op, OutcomePtr outcome, const Tensors& outputs) {
    if (coalescing_) {
      together_.push_back(outcome);
    }
    return c10::make_intrusive<Asked>(getRank(), op, ++asked_,
                                      std::vector<OutcomePtr>{std::move(outcome)}, outputs);
  }

  WorkPtr ask(OpType op, const Tensors& outputs, Task task) {
    return ask(op, outputs, std::move(task), outputs);
  }

  // `used` lie on this rank's GPU. All ranks compare theirs at the same collective, the first that
  // uses one. Hollow tensors have no bytes to exchange: all that is left of a collective is its
  // shapes.
  WorkPtr ask(OpType op, const Tensors& outputs, Task task, const Tensors& used) {
    check_usable();
    check_open();
    if (machine.hollow) {
      return hand_out(op, stream_.put([] {}), outputs);
    }
    std::optional<DeviceIndex> first_used;
    if (nccl_ && !compared_ && !used.empty()) {
      compared_ = true;
      first_used = machine.number[used.front().device().index()];
    }
    auto checked = [group = group_, first_used, task = std::move(task)] {
      if (first_used) {
        group->compare_gpus(*first_used);
      }
      group->refuse_shared_gpu();
      task();
    };
    return hand_out(op, stream_.put(std::move(checked)), outputs);
  }

  template <typename Begin>
  WorkPtr begin(OpType op, const Tensors& outputs, Begin transfer) {
    check_usable();
    check_open();
    return hand_out(op, machine.hollow ? stream_.put([] {}) : follow(transfer()), outputs);
  }

  void check_open() const {
    TORCH_CHECK_WITH(DistBackendError, !nccl_ || !closed_, "NCCL communicator was aborted on rank ",
                     getRank(), ".");
  }

  // TORCH_NCCL_NAN_CHECK=1: what this rank gives to a collective has to be numbers.
  void check_numbers(const Tensors& given) const {
    if (C10_LIKELY(!nccl_ || !nan_check) || machine.hollow) {
      return;
    }
    for (const auto& tensor : given) {
      const bool may_have = at::isFloatingType(tensor.scalar_type()) || tensor.is_complex();
      if (may_have && alias_of(tensor).isnan().any().item<bool>()) {
        throw_device_assert("the collective was given a tensor with a NaN on rank " +
                            std::to_string(getRank()));
      }
    }
  }

  Tensor alias_of(const Tensor& tensor, bool between_two = false) const {
    check_dense(tensor, between_two);
    if (nccl_) {
      check_dtype(tensor);
    }
    Aliases aliases;
    return aliases.of(tensor);
  }

  Tensors aliases_of(const Tensors& tensors) const {
    Tensors all;
    for (const auto& tensor : tensors) {
      all.push_back(alias_of(tensor));
    }
    return all;
  }

  void check_one_for_each_rank(const Tensors& list) const {
    TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(getSize()), "Expected a list of ",
                      getSize(), " tensors, one for each rank, got ", list.size());
  }

  void check_pairs(const Tensors& outputs, const Tensors& inputs) const {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(),
                      "Expected as many output tensors as input tensors, got ", outputs.size(),
                      " for ", inputs.size());
  }

  Tensors& one_list(std::vector<Tensors>& lists) const {
    TORCH_CHECK_VALUE(lists.size() == 1, "Expected one list of tensors, got ", lists.size());
    check_one_for_each_rank(lists.front());
    return lists.front();
  }

  Reduction reduction(const c10d::ReduceOp& op, const Tensor& tensor) const {
    return nccl_ ? nccl_reduction(op, tensor, getSize()) : Reduction{op.op_};
  }

  WorkPtr reduce_everywhere(OpType op, Tensors& tensors, const c10d::AllreduceOptions& given) {
    std::vector<std::pair<Tensor, Reduction>> all;
    for (const auto& tensor : tensors) {
      TORCH_CHECK(!tensor.is_complex() || c10d::isComplexViewAsRealAllowed(given.reduceOp),
                  "all_reduce does not support", given.reduceOp, "on complex tensors");
      all.emplace_back(flat(alias_of(tensor)), reduction(given.reduceOp, tensor));
    }
    check_numbers(tensors);
    know_reduced(tensors, given.reduceOp, getSize());
    return ask(op, tensors, [=, group = group_, timeout = given.timeout] {
      for (const auto& [values, how] : all) {
        group->all_reduce(values, how, timeout);
      }
    });
  }

  WorkPtr scatter_reduced(OpType op, Tensors& outputs, Tensors& inputs,
                          const c10d::ReduceScatterOptions& given) {
    Tensors wholes, parts;
    std::vector<Reduction> how;
    check_pairs(outputs, inputs);
    check_numbers(inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_same_dtype({inputs[i]}, outputs[i]);
      TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * getSize(),
                        "input tensor must be the same size as output size times world size");
      wholes.push_back(flat(alias_of(inputs[i])));
      parts.push_back(flat(alias_of(outputs[i])));
      how.push_back(reduction(given.reduceOp, inputs[i]));
      know_part_reduced(outputs[i], inputs[i], given.reduceOp, getRank(), getSize());
    }
    return ask(op, outputs, [=, group = group_, timeout = given.timeout] {
      for (size_t i = 0; i < wholes.size(); ++i) {
        const auto begin = group->rank() * parts[i].numel();
        group->reduce_scatter(wholes[i].clone(), parts[i], begin, how[i], timeout);
      }
    });
  }

  WorkPtr gather_into(OpType op, Tensors& outputs, Tensors& inputs, Milliseconds timeout) {
    check_pairs(outputs, inputs);
    check_numbers(inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      TORCH_CHECK_TYPE(inputs[i].dtype() == outputs[i].dtype(),
                       "output tensor must have the same type as input tensor");
      TORCH_CHECK_VALUE(inputs[i].numel() * getSize() == outputs[i].numel(),
                        "output tensor size must be equal to world_size times input tensor size");
      know_repeated(outputs[i], inputs[i], getSize());
    }
    auto wholes = bytes(aliases_of(outputs));
    auto parts = bytes(aliases_of(inputs));
    return ask(op, outputs, [=, group = group_] {
      for (size_t i = 0; i < parts.size(); ++i) {
        group->all_gather_into(wholes[i], parts[i], timeout);
      }
    });
  }

  std::shared_ptr<Group> group_;
  std::string name_;
  bool nccl_;
  bool compared_ = false;
  bool coalescing_ = false;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> asked_{0};
  std::atomic<int64_t> splits_{0};
  std::vector<OutcomePtr> together_;
  Stream stream_;
};

// Gives the group, whose backend for the CPU is gloo, one for CUDA that goes by this name.
void add_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::string name) {
  auto ranks = std::make_shared<Group>(group->getBackend(c10::kCPU));
  BackendPtr backend = c10::make_intrusive<Backend>(std::move(ranks), std::move(name));
  group->setBackend(c10::kCUDA, c10d::ProcessGroup::CUSTOM, backend);
}

Backend& backend_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  auto* backend = dynamic_cast<Backend*>(group->getBackend(c10::kCUDA).get());
  TORCH_INTERNAL_ASSERT(backend != nullptr);
  return *backend;
}

void count_split(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  backend_of(group).count_split();
}
int64_t splits(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return backend_of(group).splits();
}

ANYDEVICE_API void anydevice_set_nan_check(int on) { nan_check = on != 0; }

TORCH_LIBRARY_FRAGMENT(anydevice, m) {
  m.def("add_backend", TORCH_FN(add_backend));
  m.def("count_split", TORCH_FN(count_split));
  m.def("splits", TORCH_FN(splits));
}

}  // namespace
}  // namespace anydevice::collectives
