// Processes that work together: a c10d backend for virtual GPUs. It does NCCL's collectives with
// gloo, on the host aliases of the tensors, so that no byte is copied to reach them.
#pragma once

#include "dispatch/alias.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace anydevice::collectives {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using Task = std::function<void()>;

// ---- asking and waiting (work.cpp) ----

// How something that was asked for came out, once it is over.
class Outcome {
 public:
  void settle(std::exception_ptr error);
  void run(const Task& task);                    // settles it
  bool wait(std::chrono::milliseconds timeout);  // false: not over yet
  bool over();
  std::exception_ptr error();

 private:
  std::mutex mutex_;
  std::condition_variable settled_;
  bool over_ = false;
  std::exception_ptr error_;
};

using OutcomePtr = std::shared_ptr<Outcome>;

// What the caller gets. The caller's tensors are kept here and nowhere else: a thread that freed
// one of them might need Python's lock while Python is ending.
class Asked final : public c10d::Work {
 public:
  Asked(int rank, c10d::OpType op, uint64_t number, std::vector<OutcomePtr> outcomes,
        Tensors outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override { return number_; }

 private:
  std::vector<OutcomePtr> outcomes_;
  Tensors outputs_;
  uint64_t number_;
};

// A communicator's stream: its work is done in a separate thread, in order.
class Stream {
 public:
  Stream();
  ~Stream();
  OutcomePtr put(Task task);
  void drain();
  void abandon();           // what has not begun never will
  static void drain_all();  // of every communicator

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which nobody waits for at the end
};

// Waits for `transfer`, which has begun, in a separate thread.
OutcomePtr follow(WorkPtr transfer);

// ---- what NCCL takes and refuses (checks.cpp) ----

// How values of several ranks become one: gloo's op, and what NCCL does before and after it.
struct Reduction {
  c10d::ReduceOp::RedOpType op;
  std::optional<at::Scalar> scale = std::nullopt;  // of what each rank gives
  Tensor scale_tensor = {};
  int64_t divide = 1;  // of the sum

  void before(Tensor& values) const;
  void after(Tensor& values) const;
};

void check_dense(const Tensor& tensor, bool between_two = false);
void check_dtype(const Tensor& tensor);
void check_same_dtype(const Tensors& inputs, const Tensor& output);
const Tensor& only_one(const Tensors& tensors);
Reduction nccl_reduction(const c10d::ReduceOp& op, const Tensor& tensor, int ranks);

// ---- doing it (group.cpp) ----

using Milliseconds = std::chrono::milliseconds;
using Lengths = std::vector<int64_t>;

// The ranks, and what they do together: each function returns when its part is done. Tensors are
// flat and on the host.
class Group {
 public:
  explicit Group(BackendPtr gloo)
      : gloo_(std::move(gloo)), timeout_(gloo_->getBackendOptions()->timeout) {}

  int rank() const { return gloo_->getRank(); }
  int size() const { return gloo_->getSize(); }
  c10d::Backend& gloo() const { return *gloo_; }
  Milliseconds timeout() const { return timeout_; }
  void set_timeout(Milliseconds timeout);
  std::shared_ptr<Group> split(const c10::intrusive_ptr<c10d::Store>& store,
                               const std::vector<int>& ranks,
                               const c10::intrusive_ptr<c10d::Backend::Options>& wanted);

  void broadcast(const Tensor& data, int64_t root, Milliseconds timeout);
  void all_reduce(Tensor values, const Reduction& how, Milliseconds timeout);
  void reduce(Tensor values, const Reduction& how, int64_t root, Milliseconds timeout);
  // `whole`, which nobody else needs, is reduced; what lies at `begin` is this rank's.
  void reduce_scatter(Tensor whole, Tensor mine, int64_t begin, const Reduction& how,
                      Milliseconds timeout);
  void all_gather(const Tensor& mine, Tensors theirs, Milliseconds timeout);
  void all_gather_into(Tensor whole, Tensor mine, Milliseconds timeout);
  void gather(const Tensor& mine, Tensors theirs, int64_t root, Milliseconds timeout);
  void scatter(Tensors theirs, const Tensor& mine, int64_t root, Milliseconds timeout);
  void all_to_all(Tensor into, Tensor from, Lengths received, Lengths sent, Milliseconds timeout);
  void all_to_all(Tensors into, const Tensors& from, Milliseconds timeout);
  void barrier(Milliseconds timeout);

  // NCCL finds out at the first collective that two ranks are on one GPU, and serves them no more.
  void compare_gpus(DeviceIndex mine);
  void refuse_shared_gpu() const;

 private:
  BackendPtr gloo_;
  // Kept here, since gloo's options are shared by the groups that were split off this one.
  std::atomic<Milliseconds> timeout_;
  std::optional<std::string> shared_gpu_;
};

// ---- hollow GPUs' known values (collectives_known.cpp), no others' ----

void know_reduced(const Tensors& tensors, const c10d::ReduceOp& op, int ranks);
void know_part_reduced(const Tensor& output, const Tensor& input, const c10d::ReduceOp& op,
                       int rank, int ranks);
void know_the_same(const Tensors& outputs, const Tensor& input);
void know_repeated(const Tensor& output, const Tensor& input, int ranks);
void know_exchanged(const Tensor& output, const Tensor& input, bool evenly, int rank, int ranks);
void know_nothing(const Tensors& outputs);

}  // namespace anydevice::collectives
