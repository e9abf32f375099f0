// The common kernel: CUDA tensors in, their aliases to the CPU's kernel, CUDA tensors out.
// It runs for nearly every op of a program, so it allocates only the aliases themselves.
//
// Note [Kernels over the common kernel]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// enable() fills the CUDA keys of PyTorch's dispatcher in two layers:
//
// 1. ops.py lists every op for which PyTorch has a CUDA kernel, from PyTorch's own list. Each gets
//    a CommonKernel, which needs to know nothing but the op's schema: it checks devices as CUDA's
//    kernel does, makes aliases, runs the CPU's kernel (the Meta kernel on a hollow GPU) by
//    redispatching to that key, and carries changes and results back.
// 2. Where that is not what a card does, there is a kernel of ours, in an ANYDEVICE_IMPL block. The
//    blocks run after the first layer, and the dispatcher takes the last kernel registered for an
//    op and key, so ours win. A static initialiser lists each block (list_part), so that a new one
//    needs no registration elsewhere; no two blocks name the same op for the same key, so their
//    order has no effect.
//
// Inside a block, m.impl("op", &function) registers a kernel that sees CUDA tensors, for ops that
// make or move them. m.impl("op", composed<&function>()) wraps the function in a CommonKernel whose
// target is the function instead of the CPU's kernel: it sees host tensors (Meta ones if hollow)
// and names no device, so most of our kernels are ordinary ATen code.
#include "alias.h"
#include "common_kernel.h"
#include "hollow.h"
#include "known.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <sstream>
#include <unordered_map>

namespace anydevice {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

struct Devices {
  std::optional<DeviceIndex> first;
  bool mixed = false;

  void see(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    const auto device = tensor.device();
    if (!device.is_cuda() || (first && *first != device.index())) {
      mixed = true;
    } else {
      first = device.index();
    }
  }
};

Devices devices_of(const Signature& signature, const IValue* arguments) {
  Devices devices;
  for (const auto& slot : signature.slots) {
    const auto& value = arguments[slot.index];
    if (slot.kind == Kind::tensor) {
      if (value.isTensor()) {
        devices.see(value.toTensor());
      }
    } else if (slot.kind == Kind::tensors || slot.kind == Kind::optional_tensors) {
      if (value.isList()) {
        for (const IValue& element : value.toListRef()) {
          if (element.isTensor()) {
            devices.see(element.toTensor());
          }
        }
      }
    }
  }
  return devices;
}

IValue aliases_of_list(Aliases& aliases, const IValue& list) {
  if (list.isTensorList()) {
    c10::List<at::Tensor> host;
    host.reserve(list.toListRef().size());
    for (const IValue& element : list.toListRef()) {
      host.push_back(aliases.of(element.toTensor()));
    }
    return host;
  }
  c10::List<std::optional<at::Tensor>> host;
  host.reserve(list.toListRef().size());
  for (const IValue& element : list.toListRef()) {
    host.push_back(element.isTensor() ? std::optional(aliases.of(element.toTensor()))
                                      : std::nullopt);
  }
  return host;
}

// Returns the device that the results belong to, -1 for the host.
DeviceIndex to_host(const Signature& signature, const Devices& devices, IValue* arguments,
                    Aliases& aliases) {
  auto device = devices.first.value_or(current_device());
  for (const auto& slot : signature.slots) {
    auto& value = arguments[slot.index];
    switch (slot.kind) {
      case Kind::tensor:
        if (value.isTensor()) {
          value = aliases.of(std::move(value).toTensor());
        }
        break;
      case Kind::tensors:
      case Kind::optional_tensors:
        if (value.isList()) {
          value = aliases_of_list(aliases, value);
        }
        break;
      case Kind::device:
        if (value.isDevice()) {
          const auto wanted = value.toDevice();
          device = wanted.is_cuda() ? index_of(wanted) : DeviceIndex(-1);
          value = host();
        }
        break;
      case Kind::generator:
        value = cpu_stream(value.to<std::optional<at::Generator>>(), device);
        break;
    }
  }
  return device;
}

void to_device(const Signature& signature, DeviceIndex device, Stack& stack, Aliases& aliases) {
  auto* results = stack.data() + stack.size() - signature.num_returns;
  for (const auto& result : signature.results) {
    auto& value = results[result.index];
    if (value.isTensor()) {
      aliases.to_device(value.toTensor(), device);
    } else if (value.isTensorList()) {
      auto list = value.toTensorList();
      for (const auto i : c10::irange(list.size())) {
        at::Tensor tensor = list.extract(i);
        const bool each = signature.check == DeviceCheck::foreach;
        aliases.to_device(tensor, each ? aliases.device_of(i, device) : device);
        list.set(i, std::move(tensor));
      }
    }
  }
}

// Which values of a hollow GPU are known after the op: see Note [Known values].
void note_written(const Signature& signature, const IValue* arguments) {
  const bool fills = signature.op == "aten::fill_" && arguments[1].isScalar();
  for (const auto& slot : signature.slots) {
    const auto& value = arguments[slot.index];
    if (!slot.written) {
      continue;
    }
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      known::write(tensor, fills ? std::optional(at::scalar_tensor(arguments[1].toScalar(),
                                                                   arguments[1].toScalar().type()))
                                 : std::nullopt);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        known::forget(tensor);
      }
    }
  }
}

void own_written_bytes(const Signature& signature, const IValue* arguments) {
  for (const auto& slot : signature.slots) {
    const auto& value = arguments[slot.index];
    if (slot.written && value.isTensor()) {
      own_bytes(value.toTensor());
    } else if (slot.written && value.isTensorList()) {
      for (const IValue& element : value.toListRef()) {
        own_bytes(element.toTensor());
      }
    }
  }
}

// Autograd has no kernel above these ops that would count what they write to, so CUDA's own count
// it.
void count_versions(const Signature& signature, const IValue* arguments) {
  for (const auto& slot : signature.slots) {
    if (slot.written && slot.kind == Kind::tensors) {
      for (const IValue& element : arguments[slot.index].toListRef()) {
        element.toTensor().unsafeGetTensorImpl()->bump_version();
      }
    }
  }
}

// torch.jit.trace records a convolution by the _convolution inside it, which has to see the tensors
// themselves: an alias would become a constant. And tensors on several devices are refused by the
// kernel that it chooses for them.
void convolve_unaliased(Stack& stack) {
  auto arguments = torch::jit::pop(stack, 9);
  torch::jit::push(stack, at::_convolution(arguments[0].toTensor(), arguments[1].toTensor(),
                                           arguments[2].to<std::optional<at::Tensor>>(),
                                           arguments[3].toIntVector(), arguments[4].toIntVector(),
                                           arguments[5].toIntVector(), arguments[6].toBool(),
                                           arguments[7].toIntVector(), arguments[8].toInt(),
                                           /*benchmark=*/false,
                                           /*deterministic=*/false,
                                           /*cudnn_enabled=*/true,
                                           /*allow_tf32=*/true));
}

// The op on tensors without bytes, those of `type` with floats instead; false: it has no kernel for
// such, or they are not all there is to it.
bool runs_on_shapes(const c10::OperatorHandle& op, const Signature& signature,
                    const IValue* arguments, c10::ScalarType type) {
  Stack stack(arguments, arguments + signature.num_arguments);
  for (const auto& slot : signature.slots) {
    auto& value = stack[slot.index];
    if (slot.kind == Kind::tensor && value.isTensor() && value.toTensor().defined()) {
      const auto& tensor = value.toTensor();
      if (tensor.layout() != c10::kStrided) {
        return false;
      }
      const auto of = tensor.scalar_type() == type ? at::kFloat : tensor.scalar_type();
      value = at::empty_strided(tensor.sizes(), tensor.strides(),
                                at::TensorOptions().dtype(of).device(c10::kMeta));
    } else if (value.isTensorList() || value.isDevice() || value.isGenerator()) {
      return false;
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard below(keys_above);
  try {
    op.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  }
  return true;
}

// What a card checks before it looks for a kernel: the shapes. A target of whole numbers must stay
// one, so both ways have to fail.
void check_shapes(const c10::OperatorHandle& op, const Signature& signature,
                  const IValue* arguments, c10::ScalarType type) {
  if (!op.hasKernelForDispatchKey(DispatchKey::Meta)) {
    return;
  }
  try {
    runs_on_shapes(op, signature, arguments, type);
  } catch (const c10::Error& error) {
    const std::string first = error.what_without_backtrace();
    try {
      runs_on_shapes(op, signature, arguments, c10::ScalarType::Undefined);
    } catch (const c10::Error&) {
      TORCH_CHECK(false, first);
    } catch (const std::exception&) {
    }
  } catch (const std::exception&) {  // of a kernel in Python: it speaks of dtypes, too
  }
}

void refuse_if_missing(const Signature& signature, const c10::OperatorHandle& op,
                       const IValue* arguments) {
  auto type = c10::ScalarType::Undefined;
  const auto& declared = op.schema().arguments();
  const auto given = std::count_if(declared.begin(), declared.end(),
                                   [](const auto& argument) { return !argument.is_out(); });
  if (const auto* lack = signature.refusals->missing(arguments, given, type)) {
    check_shapes(op, signature, arguments, type);
    refuse_dtype(*lack, type);
  }
  signature.refusals->refuse_mixed(arguments);
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms())) {
    signature.refusals->alert(arguments);
  }
}

// A line of ops.py's list.
struct Listed {
  DeviceCheck check;
  std::string method;
};

std::unordered_map<std::string, Listed>& listed() {
  static auto* instance = new std::unordered_map<std::string, Listed>();
  return *instance;
}

// As the list has the op; one that it does not have is checked as most are.
Signature signature_listed(const c10::OperatorHandle& op, const std::string& layout) {
  const auto& schema = op.schema();
  const auto found = listed().find(layout + " " + toString(op.operator_name()));
  if (found == listed().end() || found->second.check == DeviceCheck::none) {
    return {schema, DeviceCheck::common,
            "wrapper_CUDA_" + schema.overload_name() + "_" + schema.name().substr(6)};
  }
  return {schema, found->second.check, found->second.method};
}

std::string layout_of(DispatchKeySet keys) { return c10::toString(keys.highestPriorityTypeId()); }

bool is_wider(const Signature& signature, const Stack& stack) {
  const auto& slot = signature.slots.front();
  const auto& value = torch::jit::peek(stack, slot.index, signature.num_arguments);
  return !machine.hollow && slot.kind == Kind::tensor && value.isTensor() &&
         value.toTensor().defined() &&
         signature.refusals->wider.has(value.toTensor().scalar_type());
}

// "Float" in "but type CPUFloatType does not equal CPUDoubleType".
std::string type_after(const std::string& words, const std::string& text) {
  const auto begin = text.find(words) + words.size();
  return text.substr(begin, text.find("Type", begin) - begin);
}

}  // namespace

void raise_as_on_the_card(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  TORCH_CHECK(text.find("argument #1 'per_sample_weights'; but type") == std::string::npos,
              "expected scalar type ", type_after("but type CPU", text), " but found ",
              type_after("does not equal CPU", text));
  if (text.find("index is out of bounds for dimension with size 0") != std::string::npos) {
    return;  // found before a kernel starts
  }
  for (const char* found : {"is out of bounds", "index out of range in self", "target out of range",
                            "tried to access index", "Expected idx >= 0 && idx < num_embeddings",
                            "elements of input should be between 0 and 1",
                            "elements of target should be between 0 and 1"}) {
    if (text.find(found) != std::string::npos) {
      throw_device_assert(text);
    }
  }
}

void CommonKernel::operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  check_usable();
  run_backward_in_the_calling_thread();
  const auto& signature = signature_of(op, keys);
  auto* arguments = stack->data() + stack->size() - signature.num_arguments;
  const auto devices = devices_of(signature, arguments);
  if (C10_UNLIKELY(devices.mixed)) {
    signature.check_devices(arguments);
    if (signature.check == DeviceCheck::convolution) {
      return convolve_unaliased(*stack);
    }
    signature.move_host_indices(arguments, devices.first.value_or(-1));
  }
  if (C10_UNLIKELY(signature.refusals != nullptr)) {
    refuse_if_missing(signature, op, arguments);
  }
  if (C10_UNLIKELY(signature.synchronises != Synchronises::never) && signature.waits(arguments)) {
    wait_for(signature.op.c_str(), devices.first.value_or(-1));
    if (machine.hollow) {
      return answer_hollow(signature, op.schema(), *stack);
    }
  }
  if (C10_UNLIKELY(signature.check == DeviceCheck::convolution) &&
      c10::impl::tls_is_dispatch_key_included(DispatchKey::Tracer) &&
      signature.op == "aten::convolution") {
    return convolve_unaliased(*stack);
  }
  if (C10_UNLIKELY(machine.hollow) && signature.writes) {
    note_written(signature, arguments);
  }
  if (signature.writes) {
    own_written_bytes(signature, arguments);
  }
  if (signature.check == DeviceCheck::foreach && signature.writes) {
    count_versions(signature, arguments);
  }
  Aliases aliases;
  const auto device = to_host(signature, devices, arguments, aliases);
  Results results(places_, machine.hollow ? DeviceIndex(-1) : device);
  try {
    compute(op, keys, stack);
  } catch (...) {
    if (signature.writes) {  // an `out` is resized before the kernel refuses its dtype
      aliases.carry_back();
    }
    throw;
  }
  results.kernel_has_returned();
  if (signature.writes) {
    aliases.carry_back();
  }
  if (C10_UNLIKELY(machine.hollow)) {
    refuse_hollow_results(signature, *stack);
  }
  if (device >= 0) {
    to_device(signature, device, *stack, aliases);
  }
}

void CommonKernel::compute(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(keys_above);
  if (C10_UNLIKELY(machine.hollow)) {
    return compute_hollow(op, keys, stack);
  }
  try {
    call(op, keys, stack);
  } catch (const c10::Error& error) {
    raise_as_on_the_card(error);
    throw;
  }
}

void CommonKernel::call(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (C10_UNLIKELY(signature_->refusals != nullptr) && is_wider(*signature_, *stack)) {
    kernels::call_wide(op, stack);
  } else if (C10_UNLIKELY(slow_ != kernels::Slow::never) && is_slow_call(*stack)) {
    kernels::call_wide(op, stack);
  } else if (target_.isValid()) {
    target_.callBoxed(op, keys, stack);
  } else {
    op.redispatchBoxed(keys_, stack);
  }
}

bool CommonKernel::is_slow_call(const Stack& stack) const {
  const auto* arguments = stack.data() + stack.size() - signature_->num_arguments;
  return kernels::is_slow(slow_, arguments, signature_->num_arguments);
}

void CommonKernel::compute_hollow(const c10::OperatorHandle& op, DispatchKeySet keys,
                                  Stack* stack) {
  const auto& signature = signature_of(op, keys);
  if (answer_by_shapes(signature, *stack)) {
    return;
  }
  const auto arguments_and_below = stack->size();
  try {
    call(op, keys, stack);
  } catch (const c10::Error& error) {
    if (!wants_values(error) || stack->size() != arguments_and_below) {
      throw;
    }
    answer_hollow(signature, op.schema(), *stack);
  }
}

// A kernel written by hand learns its op when it is first called.
const Signature& CommonKernel::signature_of(const c10::OperatorHandle& op, DispatchKeySet keys) {
  std::call_once(known_, [&] {
    if (!signature_) {
      signature_.emplace(signature_listed(op, layout_of(keys)));
    }
  });
  return *signature_;
}

namespace {

struct Boxed final : c10::OperatorKernel {
  explicit Boxed(std::shared_ptr<CommonKernel> common) : kernel(std::move(common)) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    (*kernel)(op, keys, stack);
  }
  std::shared_ptr<CommonKernel> kernel;
};

// Around a kernel of ours that sees CUDA tensors: what PyTorch's wrapper of a CUDA kernel checks.
class CheckedKernel final : public c10::OperatorKernel {
 public:
  CheckedKernel(Signature signature, c10::KernelFunction target)
      : signature_(std::move(signature)), target_(std::move(target)) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto* arguments = stack->data() + stack->size() - signature_.num_arguments;
    signature_.check_devices(arguments);
    if (signature_.refusals != nullptr) {
      refuse_if_missing(signature_, op, arguments);
    }
    target_.callBoxed(op, keys, stack);
  }

 private:
  Signature signature_;
  c10::KernelFunction target_;
};

// A CUDA build has its own kernels for these ops; ours replace them, and torch would warn of it.
struct Silence final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

struct Part {
  const char* ns;
  DispatchKey key;
  void (*register_kernels)(Kernels&);
};

std::vector<Part>& parts() {
  static auto* instance = new std::vector<Part>();
  return *instance;
}

std::deque<torch::Library>& libraries() {
  static auto* instance = new std::deque<torch::Library>();
  return *instance;
}

struct Keys {
  const char* name;
  DispatchKey device, host, hollow;
};

constexpr Keys layouts[] = {
    {"CUDA", DispatchKey::CUDA, DispatchKey::CPU, DispatchKey::Meta},
    {"SparseCUDA", DispatchKey::SparseCUDA, DispatchKey::SparseCPU, DispatchKey::SparseMeta},
    {"SparseCsrCUDA", DispatchKey::SparseCsrCUDA, DispatchKey::SparseCsrCPU,
     DispatchKey::SparseCsrMeta},
    {"NestedTensorCUDA", DispatchKey::NestedTensorCUDA, DispatchKey::NestedTensorCPU,
     DispatchKey::NestedTensorMeta},
    {"QuantizedCUDA", DispatchKey::QuantizedCUDA, DispatchKey::QuantizedCPU,
     DispatchKey::QuantizedMeta},
};

DeviceCheck check_named(const std::string& name) {
  return name == "common"        ? DeviceCheck::common
         : name == "iterator"    ? DeviceCheck::iterator
         : name == "foreach"     ? DeviceCheck::foreach
         : name == "indices"     ? DeviceCheck::indices
         : name == "index_put"   ? DeviceCheck::index_put
         : name == "masked_fill" ? DeviceCheck::masked_fill
         : name == "fill_index"  ? DeviceCheck::fill_index
         : name == "where"       ? DeviceCheck::where
         : name == "no_scalar"   ? DeviceCheck::no_scalar
         : name == "same_output" ? DeviceCheck::same_output
         : name == "gpu_kernel"  ? DeviceCheck::gpu_kernel
         : name == "convolution" ? DeviceCheck::convolution
                                 : DeviceCheck::none;
}

// Whether the op has one of the usual C++ types, which its kernel then has, too.
bool register_typed(torch::Library& library, const c10::OperatorHandle& op,
                    const std::shared_ptr<CommonKernel>& kernel) {
  auto function = typed(op, kernel);
  if (!function) {
    return false;
  }
  try {
    library.impl(toString(op.operator_name()).c_str(), std::move(*function));
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// A line of the list: layout, op with its overload, device check, method name in errors.
void register_common(const std::string& line) {
  std::istringstream fields(line);
  std::string layout, op, check, method;
  fields >> layout >> op >> check >> method;
  const auto dot = op.find('.');
  const c10::OperatorName name("aten::" + op.substr(0, dot),
                               dot == std::string::npos ? "" : op.substr(dot + 1));
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle) {
    return;
  }
  listed()[layout + " " + toString(name)] = {check_named(check), method};
  for (const auto i : c10::irange(std::size(layouts))) {
    if (layout == layouts[i].name) {
      const auto host = machine.hollow ? layouts[i].hollow : layouts[i].host;
      const auto kernel = std::make_shared<CommonKernel>(
          Signature(handle->schema(), check_named(check), method), DispatchKeySet(host),
          host == DispatchKey::Meta ? kernel_for_shapes(op) : c10::KernelFunction(),
          host == DispatchKey::CPU ? kernels::slow_in(op) : kernels::Slow::never);
      if (host != DispatchKey::CPU || !register_typed(libraries()[i], *handle, kernel)) {
        libraries()[i].impl(
            op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Boxed>(kernel)));
      }
    }
  }
}

constexpr char refusal_mark = '!';

// They come with the list, since a signature looks for its own.
void read_refusals(const char* list) {
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(refusal_mark)) {
      TORCH_INTERNAL_ASSERT(read_refusal(line.substr(1)), line);
    }
  }
}

}  // namespace

torch::Library& open_library(const char* ns, DispatchKey key) {
  return libraries().emplace_back(torch::Library::IMPL, ns, key, __FILE__, __LINE__);
}

bool list_part(const char* ns, DispatchKey key, void (*register_kernels)(Kernels&)) {
  parts().push_back({ns, key, register_kernels});
  return true;
}

std::optional<torch::CppFunction> checked(const c10::OperatorHandle& op, DispatchKey key,
                                          const c10::KernelFunction& target) {
  if (key != DispatchKey::CUDA) {
    return std::nullopt;
  }
  auto signature = signature_listed(op, "CUDA");
  const auto found = listed().find("CUDA " + toString(op.operator_name()));
  const auto tensors = std::count_if(
      signature.slots.begin(), signature.slots.end(),
      [](const Slot& slot) { return slot.kind != Kind::device && slot.kind != Kind::generator; });
  const bool several =
      tensors > 1 && found != listed().end() && found->second.check == DeviceCheck::common;
  if (!several && signature.refusals == nullptr) {
    return std::nullopt;
  }
  if (!several) {
    signature.check = DeviceCheck::none;
  }
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<CheckedKernel>(std::move(signature), target));
}

torch::CppFunction aliased(c10::KernelFunction target) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<Boxed>(std::make_shared<CommonKernel>(std::move(target))));
}

void register_kernels(const char* list) {
  static bool hollow = false;
  if (!libraries().empty() && hollow == machine.hollow) {
    return;  // they stayed when other GPUs went, and another thread may be inside of them
  }
  hollow = machine.hollow;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  libraries().clear();
  left_out().clear();
  listed().clear();
  forget_refusals();
  read_refusals(list);
  for (const auto& layout : layouts) {
    open_library("aten", layout.device);
  }
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(refusal_mark)) {
      register_common(line);
    }
  }
  for (const auto& part : parts()) {
    Kernels kernels(part.ns, part.key);
    part.register_kernels(kernels);
  }
}

void unregister_kernels() { libraries().clear(); }

}  // namespace anydevice
