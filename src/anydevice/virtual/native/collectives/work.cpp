// Collectives are asked for by one thread and done by another, so that async_op means what it says:
// programs may ask on each rank in an order that would deadlock if asking meant waiting.
#include "collectives.h"

#include <set>
#include <thread>

namespace anydevice::collectives {
namespace {

// Some of torch's bindings call us with Python's lock held; others want it while we wait.
class WithoutPythonsLock {
 public:
  WithoutPythonsLock() {
    static auto* const held = pythons<int()>("PyGILState_Check");
    static auto* const release = pythons<void*()>("PyEval_SaveThread");
    if (held != nullptr && release != nullptr && held() != 0) {
      thread_ = release();
    }
  }
  ~WithoutPythonsLock() {
    static auto* const acquire = pythons<void(void*)>("PyEval_RestoreThread");
    if (thread_ != nullptr) {
      acquire(thread_);
    }
  }
  WithoutPythonsLock(const WithoutPythonsLock&) = delete;
  WithoutPythonsLock& operator=(const WithoutPythonsLock&) = delete;

 private:
  void* thread_ = nullptr;
};

std::exception_ptr as_backend_error(const char* what) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, what));
}

}  // namespace

// ---- Outcome ----

void Outcome::settle(std::exception_ptr error) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
    error_ = std::move(error);
  }
  settled_.notify_all();
}

void Outcome::run(const Task& task) {
  std::exception_ptr error;
  try {
    task();
  } catch (const c10::Error& raised) {
    error = as_backend_error(raised.what_without_backtrace());
  } catch (const std::exception& raised) {
    error = as_backend_error(raised.what());
  }
  settle(error);
}

bool Outcome::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto over = [this] { return over_; };
  if (timeout == kNoTimeout) {
    settled_.wait(lock, over);
    return true;
  }
  return settled_.wait_for(lock, timeout, over);
}

bool Outcome::over() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return over_;
}

std::exception_ptr Outcome::error() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

// ---- Asked ----

Asked::Asked(int rank, c10d::OpType op, uint64_t number, std::vector<OutcomePtr> outcomes,
             Tensors outputs)
    : Work(rank, op),
      outcomes_(std::move(outcomes)),
      outputs_(std::move(outputs)),
      number_(number) {}

bool Asked::isCompleted() {
  return std::all_of(outcomes_.begin(), outcomes_.end(),
                     [](auto& outcome) { return outcome->over(); });
}

bool Asked::isSuccess() const { return exception() == nullptr; }

std::exception_ptr Asked::exception() const {
  for (const auto& outcome : outcomes_) {
    if (auto error = outcome->error()) {
      return error;
    }
  }
  return nullptr;
}

bool Asked::wait(std::chrono::milliseconds timeout) {
  {
    const WithoutPythonsLock others_may_run;
    for (const auto& outcome : outcomes_) {
      TORCH_CHECK_WITH(DistBackendError, outcome->wait(timeout), "Operation timed out after ",
                       timeout.count(), " ms");
    }
  }
  if (auto error = exception()) {
    std::rethrow_exception(error);
  }
  return true;
}

void Asked::synchronize() { wait(kNoTimeout); }

Tensors Asked::result() { return outputs_; }

// NCCL's future is complete when it is made, so callbacks run at once, in the thread that adds
// them. Here that is true once the work is done.
c10::intrusive_ptr<c10::ivalue::Future> Asked::getFuture() {
  std::vector<Device> devices;
  for (const auto& output : outputs_) {
    if (output.is_cuda() &&
        std::find(devices.begin(), devices.end(), output.device()) == devices.end()) {
      devices.push_back(output.device());
    }
  }
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::move(devices));
  try {
    wait(kNoTimeout);
    future->markCompleted(c10::IValue(outputs_));
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> Asked::getFutureResult() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  auto result = c10d::WorkResult::SUCCESS;
  try {
    wait(kNoTimeout);
  } catch (const std::exception&) {
    result = c10d::WorkResult::COMM_ERROR;
  }
  future->markCompleted(c10::IValue(static_cast<int64_t>(result)));
  return future;
}

// ---- Stream ----

struct Stream::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<Task, OutcomePtr>> waiting;
  bool started = false;
  bool busy = false;
  bool closed = false;

  void work() {
    const at::AutoDispatchBelowADInplaceOrView below;
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return closed || !waiting.empty(); });
      if (waiting.empty()) {
        return;
      }
      auto [task, outcome] = std::move(waiting.front());
      waiting.pop_front();
      busy = true;
      lock.unlock();
      outcome->run(task);
      task = nullptr;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  void drain() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return waiting.empty() && !busy; });
  }

  // Never destroyed: threads may outlive the program's last line.
  static std::mutex& all_mutex() {
    static auto* instance = new std::mutex();
    return *instance;
  }
  static std::set<std::shared_ptr<State>>& all() {
    static auto* instance = new std::set<std::shared_ptr<State>>();
    return *instance;
  }
};

Stream::Stream() : state_(std::make_shared<State>()) {
  const std::lock_guard<std::mutex> lock(State::all_mutex());
  State::all().insert(state_);
}

Stream::~Stream() {
  abandon();
  const std::lock_guard<std::mutex> lock(State::all_mutex());
  State::all().erase(state_);
}

OutcomePtr Stream::put(Task task) {
  auto outcome = std::make_shared<Outcome>();
  const std::lock_guard<std::mutex> lock(state_->mutex);
  TORCH_CHECK_WITH(DistBackendError, !state_->closed, "The process group has been destroyed.");
  if (!state_->started) {
    state_->started = true;
    std::thread([state = state_] { state->work(); }).detach();
  }
  state_->waiting.emplace_back(std::move(task), outcome);
  state_->changed.notify_all();
  return outcome;
}

void Stream::drain() {
  const WithoutPythonsLock others_may_run;
  state_->drain();
}

void Stream::abandon() {
  std::deque<std::pair<Task, OutcomePtr>> never_begun;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = true;
    never_begun.swap(state_->waiting);
  }
  state_->changed.notify_all();
  for (auto& [task, outcome] : never_begun) {
    outcome->settle(
        as_backend_error("The process group was destroyed before this collective began."));
  }
}

OutcomePtr follow(WorkPtr transfer) {
  auto outcome = std::make_shared<Outcome>();
  std::thread([transfer = std::move(transfer), outcome] {
    outcome->run([&] { transfer->wait(kNoTimeout); });
  }).detach();
  return outcome;
}

void Stream::drain_all() {
  std::vector<std::shared_ptr<State>> streams;
  {
    const std::lock_guard<std::mutex> lock(State::all_mutex());
    streams.assign(State::all().begin(), State::all().end());
  }
  const WithoutPythonsLock others_may_run;
  for (const auto& stream : streams) {
    stream->drain();
  }
}

}  // namespace anydevice::collectives

void anydevice::wait_for_collectives() { collectives::Stream::drain_all(); }
