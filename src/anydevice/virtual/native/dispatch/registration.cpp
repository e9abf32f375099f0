// See Note [An op that a torch has otherwise] in registration.h.
#include "registration.h"

#include "anydevice.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <unordered_map>

namespace anydevice {
namespace {

using c10::DispatchKey;

// What an op that cannot be computed answers.
class Refusal final : public c10::OperatorKernel {
 public:
  explicit Refusal(std::string reason) : reason_(std::move(reason)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, op.schema().name(), " is not available on a virtual GPU with this torch, whose ",
        op.schema().name(), " is not the one that anydevice knows (", reason_,
        "): use the torch that anydevice was tested with, or run this op on the CPU.");
  }

 private:
  std::string reason_;
};

bool is_of_a_device(DispatchKey key) {
  return c10::isPerBackendFunctionalityKey(c10::toFunctionalityKey(key)) &&
         c10::toBackendComponent(key) == c10::BackendComponent::CUDABit;
}

// Whether PyTorch can compute the op without our kernel, on the host's aliases.
bool is_on_host(const c10::OperatorHandle& op, DispatchKey device) {
  const auto host = c10::toRuntimePerBackendFunctionalityKey(c10::toFunctionalityKey(device),
                                                             c10::BackendComponent::CPUBit);
  return op.hasComputedKernelForDispatchKey(host);
}

// Tests change the schemas that we see.
std::unordered_map<std::string, c10::FunctionSchema>& pretended() {
  static auto* instance = new std::unordered_map<std::string, c10::FunctionSchema>();
  return *instance;
}

void pretend_schema(const std::string& text) {
  if (text.empty()) {
    return pretended().clear();
  }
  auto schema = torch::jit::parseSchema(text);
  auto name = toString(schema.operator_name());
  pretended().insert_or_assign(std::move(name), std::move(schema));
}

TORCH_LIBRARY_FRAGMENT(anydevice, m) {
  m.def("pretend_schema(str schema) -> ()", TORCH_FN(pretend_schema));
}

}  // namespace

const c10::FunctionSchema& schema_of(const c10::OperatorHandle& op) {
  const auto found = pretended().find(toString(op.operator_name()));
  return found == pretended().end() ? op.schema() : found->second;
}

std::optional<std::string> Kernel::mismatch(const c10::FunctionSchema& schema) const {
  if (inferred_) {  // as the dispatcher compares them
    return c10::findSchemaDifferences(schema.cloneWithRealTypes(takes_symint_),
                                      inferred_->cloneWithRealTypes());
  }
  for (const auto* name : reads_) {
    if (!schema.argumentIndexWithName(name)) {
      return c10::str("it has no argument ", name);
    }
  }
  if (results_ >= 0 && schema.returns().size() != static_cast<size_t>(results_)) {
    return c10::str("it has ", schema.returns().size(), " results instead of ", results_);
  }
  return std::nullopt;
}

Kernels::Kernels(const char* ns, DispatchKey key)
    : ns_(ns), key_(key), library_(open_library(ns, key)) {}

void Kernels::impl(const char* name, Kernel kernel) {
  const std::string full = ns_ + "::" + name;
  const auto dot = full.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
  if (!op) {
    left_out().push_back(full + ": this torch has no such op");
    return;
  }
  if (const auto reason = kernel.mismatch(schema_of(*op))) {
    return leave_out(*op, *reason);
  }
  try {
    if (kernel.seeing_devices.isValid() && ns_ == "aten") {
      if (auto function = checked(*op, key_, kernel.seeing_devices)) {
        library_.impl(name, *std::move(function));
        return;
      }
    }
    library_.impl(name, std::move(kernel.function));
  } catch (const c10::Error& error) {  // the C++ types differ where the schemas do not
    const std::string text = error.what_without_backtrace();
    leave_out(*op, text.substr(0, text.find('\n')));
  }
}

void Kernels::leave_out(const c10::OperatorHandle& op, const std::string& reason) {
  left_out().push_back(toString(op.operator_name()) + ": " + reason);
  if (is_of_a_device(key_) && !machine.hollow && !is_on_host(op, key_)) {
    auto name = toString(op.operator_name());
    library_.impl(name.c_str(),
                  torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Refusal>(reason)));
  }
}

std::vector<std::string>& left_out() {
  static auto* instance = new std::vector<std::string>();
  return *instance;
}

}  // namespace anydevice
