// Each collective as gloo's. What gloo lacks is made of others: gathering rows of unequal length is
// a broadcast from each rank, scattering a sum is a sum of which each rank keeps its part.
#include "collectives.h"
#include "system.h"

#include <unistd.h>

#include <fstream>
#include <numeric>

#include <c10/util/ScopeExit.h>

namespace anydevice::collectives {
namespace {

template <typename Options>
Options within(Milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  return options;
}

template <typename Options>
Options from_root(int64_t root, Milliseconds timeout) {
  auto options = within<Options>(timeout);
  options.rootRank = root;
  return options;
}

bool same_lengths(const Tensors& rows) {
  return std::all_of(rows.begin(), rows.end(),
                     [&](const Tensor& row) { return row.numel() == rows.front().numel(); });
}

Lengths lengths(const Tensors& rows) {
  Lengths each;
  for (const auto& row : rows) {
    each.push_back(row.numel());
  }
  return each;
}

// Differs with each start of a machine, where the system has such a number.
std::string start_of_machine() {
  std::string start;
  if (on_linux()) {
    std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  }
  return start;
}

// Identifies this machine, as NCCL does: containers on two nodes may have the same name.
int64_t this_machine() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return static_cast<int64_t>(std::hash<std::string>()(name + start_of_machine()));
}

}  // namespace

void Group::set_timeout(Milliseconds timeout) {
  timeout_ = timeout;
  gloo_->setTimeout(timeout);
}

// What gloo splits off takes its options, the very same, and keeps them: they are as wanted
// meanwhile.
std::shared_ptr<Group> Group::split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<c10d::Backend::Options>& wanted) {
  auto options = gloo_->getBackendOptions();
  const auto name = options->group_name;
  options->timeout = std::max(wanted->timeout, kBackendDefaultTimeout);  // to meet; cf. nccl.py
  options->group_name = wanted->group_name;
  options->global_ranks_in_group.resize(size());
  std::iota(options->global_ranks_in_group.begin(), options->global_ranks_in_group.end(), 0);
  auto restored = c10::make_scope_exit([&] {
    options->timeout = timeout();
    options->group_name = name;
  });
  auto part = gloo_->split(store, ranks, options);
  if (!part) {
    return nullptr;  // this rank is not among them
  }
  auto group = std::make_shared<Group>(std::move(part));
  group->set_timeout(wanted->timeout);
  return group;
}

void Group::broadcast(const Tensor& data, int64_t root, Milliseconds timeout) {
  if (data.numel() > 0) {
    Tensors all{data};
    gloo_->broadcast(all, from_root<c10d::BroadcastOptions>(root, timeout))->wait();
  }
}

void Group::all_reduce(Tensor values, const Reduction& how, Milliseconds timeout) {
  if (values.numel() == 0) {
    return;
  }
  how.before(values);
  auto options = within<c10d::AllreduceOptions>(timeout);
  options.reduceOp = how.op;
  Tensors all{values};
  gloo_->allreduce(all, options)->wait();
  how.after(values);
}

void Group::reduce(Tensor values, const Reduction& how, int64_t root, Milliseconds timeout) {
  if (values.numel() == 0) {
    return;
  }
  if (rank() != root) {
    values = values.clone();  // only the root's changes
  }
  how.before(values);
  auto options = from_root<c10d::ReduceOptions>(root, timeout);
  options.reduceOp = how.op;
  Tensors all{values};
  gloo_->reduce(all, options)->wait();
  how.after(values);
}

void Group::reduce_scatter(Tensor whole, Tensor mine, int64_t begin, const Reduction& how,
                           Milliseconds timeout) {
  all_reduce(whole, how, timeout);
  mine.copy_(whole.narrow(0, begin, mine.numel()));
}

void Group::all_gather(const Tensor& mine, Tensors theirs, Milliseconds timeout) {
  if (!same_lengths(theirs)) {
    theirs[rank()].copy_(mine);
    for (int root = 0; root < size(); ++root) {
      broadcast(theirs[root], root, timeout);
    }
  } else if (mine.numel() > 0) {
    std::vector<Tensors> into{std::move(theirs)};
    Tensors from{mine};
    gloo_->allgather(into, from, within<c10d::AllgatherOptions>(timeout))->wait();
  }
}

void Group::all_gather_into(Tensor whole, Tensor mine, Milliseconds timeout) {
  if (mine.numel() > 0) {
    gloo_->_allgather_base(whole, mine, within<c10d::AllgatherOptions>(timeout))->wait();
  }
}

void Group::gather(const Tensor& mine, Tensors theirs, int64_t root, Milliseconds timeout) {
  if (mine.numel() > 0) {
    std::vector<Tensors> into;
    if (rank() == root) {
      into.push_back(std::move(theirs));
    }
    Tensors from{mine};
    gloo_->gather(into, from, from_root<c10d::GatherOptions>(root, timeout))->wait();
  }
}

void Group::scatter(Tensors theirs, const Tensor& mine, int64_t root, Milliseconds timeout) {
  if (mine.numel() > 0) {
    std::vector<Tensors> from;
    if (rank() == root) {
      from.push_back(std::move(theirs));
    }
    Tensors into{mine};
    gloo_->scatter(into, from, from_root<c10d::ScatterOptions>(root, timeout))->wait();
  }
}

void Group::all_to_all(Tensor into, Tensor from, Lengths received, Lengths sent,
                       Milliseconds timeout) {
  gloo_->alltoall_base(into, from, received, sent, within<c10d::AllToAllOptions>(timeout))->wait();
}

void Group::all_to_all(Tensors into, const Tensors& from, Milliseconds timeout) {
  const auto received = lengths(into);
  auto arrived = at::empty({c10::sum_integers(received)}, from.front().options());
  all_to_all(arrived, at::cat(from), received, lengths(from), timeout);
  const auto parts = arrived.split_with_sizes(received);
  for (size_t i = 0; i < parts.size(); ++i) {
    into[i].copy_(parts[i]);
  }
}

void Group::barrier(Milliseconds timeout) {
  gloo_->barrier(within<c10d::BarrierOptions>(timeout))->wait();
}

void Group::compare_gpus(DeviceIndex mine) {
  const auto here = at::tensor({this_machine(), static_cast<int64_t>(mine)}, at::kLong);
  const auto places = at::empty({size(), 2}, here.options());
  all_gather_into(places.view({-1}), here, c10d::kUnsetTimeout);
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && at::equal(places[other], here)) {
      shared_gpu_ = c10::str(
          "NCCL error: invalid usage\nncclInvalidUsage: This usually reflects invalid usage of "
          "NCCL library.\nLast error:\nDuplicate GPU detected : rank ",
          rank(), " and rank ", other, " both on CUDA device ", static_cast<int>(mine));
      return;
    }
  }
}

void Group::refuse_shared_gpu() const { TORCH_CHECK(!shared_gpu_, *shared_gpu_); }

}  // namespace anydevice::collectives
