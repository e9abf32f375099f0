// The common kernel without boxes.
//
// Note [Kernels with C++ types]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A boxed kernel takes any op: its arguments come as a stack of IValues, which are allocated,
// filled and read again, once to reach us and once to reach the CPU's kernel. For a small op that
// is as much as everything else. Most calls of a program are of ops with one of a few C++ types;
// those get a kernel of that type, which hands its arguments on as they are. It takes the calls
// that are as most are: dense tensors of one GPU, in a dtype of which nothing special is known. All
// others go the boxed way, so that what is checked and refused is written once. An op whose C++
// type is not the one its schema suggests is left to the boxed kernel, too: PyTorch compares both
// with the CPU's kernel, here and again as the kernel is registered (register_common).
#include "alias.h"
#include "common_kernel.h"

#include <ATen/Context.h>
#include <ATen/core/boxing/impl/boxing.h>

#include <tuple>
#include <unordered_map>

namespace anydevice {
namespace {

using at::Scalar;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

// The dtypes of which something is known: refused on a card, or computed in another way.
Dtypes unusual_dtypes(const CommonKernel& kernel) {
  Dtypes unusual;
  if (const auto* refusals = kernel.signature().refusals) {
    unusual.add(refusals->wider);
    for (const auto& lack : refusals->without_kernel) {
      unusual.add(lack.dtypes);
    }
  }
  if (kernel.slow() != kernels::Slow::never) {
    unusual.add(at::kHalf);
    unusual.add(at::kBFloat16);
  }
  return unusual;
}

// Whether the arguments of a call are as most are, and on which GPU.
class Look {
 public:
  Look(Dtypes unusual, bool takes_number) : unusual_(unusual), takes_number_(takes_number) {}

  void see(const Tensor& tensor, bool written) {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    const auto keys = impl.key_set();
    if (unusual_.has(c10::typeMetaToScalarType(impl.dtype()))) {
      usual_ = false;
    } else if (C10_LIKELY(keys.has(DispatchKey::CUDA))) {
      const auto its = impl.device().index();
      usual_ = usual_ && (device_ < 0 || device_ == its);
      device_ = its;
      if (written) {
        own_bytes(tensor);
      }
    } else {  // x * 2: the number comes as a tensor on the host
      usual_ = usual_ && takes_number_ && !written && keys.has(DispatchKey::CPU) &&
               impl.is_wrapped_number() && !number_;
      number_ = true;
    }
  }
  void operator()(const Tensor& tensor) {
    if (tensor.defined()) {
      see(tensor, false);
    } else {
      usual_ = false;
    }
  }
  void operator()(Tensor& tensor) { see(tensor, true); }
  template <typename Other>
  void operator()(const Other&) {}

  // -1: something is not as it usually is.
  DeviceIndex device() const { return usual_ ? device_ : DeviceIndex(-1); }

 private:
  const Dtypes unusual_;
  const bool takes_number_;
  bool usual_ = true, number_ = false;
  DeviceIndex device_ = -1;
};

template <typename Argument>
decltype(auto) on_host(Aliases&, Argument& argument) {
  return (argument);
}
Tensor& on_host(Aliases& aliases, Tensor& argument) { return aliases.lend(argument); }
const Tensor& on_host(Aliases& aliases, const Tensor& argument) {
  return argument.is_cuda() ? aliases.lend(argument) : argument;
}

template <typename... Results>
void to_device(Aliases& aliases, std::tuple<Results...>& results, DeviceIndex device) {
  std::apply([&](auto&... result) { (aliases.to_device(result, device), ...); }, results);
}
void to_device(Aliases& aliases, Tensor& result, DeviceIndex device) {
  aliases.to_device(result, device);
}

template <typename First, typename... Rest>
First& first_of(First& first, Rest&...) {
  return first;
}

template <typename Result, typename... Arguments>
class Typed {
  static_assert(sizeof...(Arguments) <= Aliases::few);

 public:
  Typed(const c10::OperatorHandle& op, std::shared_ptr<CommonKernel> kernel)
      : op_(op.typed<Result(Arguments...)>()),
        kernel_(std::move(kernel)),
        look_(unusual_dtypes(*kernel_), kernel_->signature().check == DeviceCheck::iterator),
        alerts_(kernel_->signature().refusals != nullptr &&
                !kernel_->signature().refusals->alerts.empty()) {}

  Result operator()(DispatchKeySet keys, Arguments... arguments) const {
    auto look = look_;
    (look(arguments), ...);
    const auto device = look.device();
    if (C10_UNLIKELY(device < 0 || machine.hollow || machine.forked ||
                     (alerts_ && at::globalContext().deterministicAlgorithms()))) {
      return boxed(keys, arguments...);
    }
    run_backward_in_the_calling_thread();
    Aliases aliases;
    Results results(kernel_->places(), device);
    if constexpr (std::is_reference_v<Result>) {
      try {
        compute(aliases, arguments...);
      } catch (...) {
        aliases.carry_back();
        throw;
      }
      aliases.carry_back();
      return first_of(arguments...);
    } else {
      auto result = compute(aliases, arguments...);
      results.kernel_has_returned();
      to_device(aliases, result, device);
      return result;
    }
  }

 private:
  Result compute(Aliases& aliases, std::remove_reference_t<Arguments>&... arguments) const {
    const c10::impl::ExcludeDispatchKeyGuard below(keys_above);
    std::tuple<decltype(on_host(aliases, arguments))...> host{on_host(aliases, arguments)...};
    try {
      return std::apply(
          [&](auto&... given) -> Result { return op_.redispatch(kernel_->host_keys(), given...); },
          host);
    } catch (const c10::Error& error) {
      raise_as_on_the_card(error);
      throw;
    }
  }

  Result boxed(DispatchKeySet keys, std::remove_reference_t<Arguments>&... arguments) const {
    auto stack = c10::impl::boxArgs<Arguments...>(arguments...);
    (*kernel_)(op_, keys, &stack);
    if constexpr (std::is_reference_v<Result>) {
      return first_of(arguments...);
    } else {
      return c10::impl::PopResult<Result>::call(stack);
    }
  }

  c10::TypedOperatorHandle<Result(Arguments...)> op_;
  std::shared_ptr<CommonKernel> kernel_;
  Look look_;
  bool alerts_;
};

using Maker = torch::CppFunction (*)(const c10::OperatorHandle&,
                                     const std::shared_ptr<CommonKernel>&);

template <typename>
struct Make;
template <typename Result, typename... Arguments>
struct Make<Result(Arguments...)> {
  static torch::CppFunction call(const c10::OperatorHandle& op,
                                 const std::shared_ptr<CommonKernel>& kernel) {
    return torch::CppFunction(Typed<Result, Arguments...>(op, kernel));
  }
};

// One letter an argument: T, W (a tensor, one that is written to), S(calar), i(nt), b(ool), s(calar
// type), and in capitals what may be left out: N (ints), D (scalar type), F (memory format).
char letter_of_optional(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::ScalarTypeType:
      return 'D';
    case c10::TypeKind::MemoryFormatType:
      return 'F';
    case c10::TypeKind::ListType:
      return type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::IntType
                 ? 'N'
                 : '?';
    default:
      return '?';
  }
}

char letter(const c10::Argument& argument) {
  const auto& type = *argument.real_type();
  const auto* alias = argument.alias_info();
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return alias == nullptr ? 'T' : alias->isWrite() ? 'W' : '?';
    case c10::TypeKind::NumberType:
      return 'S';
    case c10::TypeKind::IntType:
      return 'i';
    case c10::TypeKind::BoolType:
      return 'b';
    case c10::TypeKind::ScalarTypeType:
      return 's';
    case c10::TypeKind::OptionalType:
      return letter_of_optional(*type.castRaw<c10::OptionalType>()->getElementType());
    default:
      return '?';
  }
}

std::string letters(const c10::FunctionSchema& schema) {
  std::string text;
  for (const auto& result : schema.returns()) {
    text += letter(result);
  }
  text += '=';
  for (const auto& argument : schema.arguments()) {
    text += letter(argument);
  }
  return text;
}

const std::unordered_map<std::string, Maker>& makers() {
  using T = const Tensor&;
  using S = const Scalar&;
  using W = Tensor&;
  using Type = std::optional<at::ScalarType>;
  static const std::unordered_map<std::string, Maker> all{
      {"T=T", &Make<Tensor(T)>::call},
      {"T=TT", &Make<Tensor(T, T)>::call},
      {"T=TTT", &Make<Tensor(T, T, T)>::call},
      {"T=TS", &Make<Tensor(T, S)>::call},
      {"T=TSS", &Make<Tensor(T, S, S)>::call},
      {"T=TTS", &Make<Tensor(T, T, S)>::call},
      {"T=TTTS", &Make<Tensor(T, T, T, S)>::call},
      {"T=TTTSS", &Make<Tensor(T, T, T, S, S)>::call},
      {"T=Tib", &Make<Tensor(T, int64_t, bool)>::call},
      {"T=TD", &Make<Tensor(T, Type)>::call},
      {"T=TF", &Make<Tensor(T, std::optional<at::MemoryFormat>)>::call},
      {"T=TNbD", &Make<Tensor(T, at::OptionalIntArrayRef, bool, Type)>::call},
      {"T=TTis", &Make<Tensor(T, T, int64_t, at::ScalarType)>::call},
      {"W=W", &Make<W(W)>::call},
      {"W=WT", &Make<W(W, T)>::call},
      {"W=WS", &Make<W(W, S)>::call},
      {"W=WSS", &Make<W(W, S, S)>::call},
      {"W=WTS", &Make<W(W, T, S)>::call},
      {"W=WTTS", &Make<W(W, T, T, S)>::call},
  };
  return all;
}

}  // namespace

std::optional<torch::CppFunction> typed(const c10::OperatorHandle& op,
                                        const std::shared_ptr<CommonKernel>& kernel) {
  const auto& signature = kernel->signature();
  const bool plain = signature.check == DeviceCheck::common ||
                     signature.check == DeviceCheck::iterator ||
                     signature.check == DeviceCheck::no_scalar;
  const auto found = makers().find(letters(schema_of(op)));
  if (!plain || signature.synchronises != Synchronises::never || kernel->has_target() ||
      found == makers().end()) {
    return std::nullopt;
  }
  try {
    return found->second(op, kernel);
  } catch (const c10::Error&) {  // it has another C++ type
    return std::nullopt;
  }
}

}  // namespace anydevice
