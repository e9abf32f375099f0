// See Note [What a card refuses] in refusals.h.
#include "refusals.h"

#include "anydevice.h"

#include <ATen/native/TypeProperties.h>

#include <sstream>
#include <unordered_map>

namespace anydevice {
namespace {

using c10::IValue;
using c10::ScalarType;

std::unordered_map<std::string, Refusals>& known_refusals() {
  static auto* instance = new std::unordered_map<std::string, Refusals>();
  return *instance;
}

// "Long" is what messages and C++ call it.
std::optional<ScalarType> type_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(ScalarType::NumOptions); ++i) {
    const auto type = static_cast<ScalarType>(i);
    if (name == c10::toString(type)) {
      return type;
    }
  }
  return std::nullopt;  // one that this torch does not have
}

Dtypes dtypes_in(const std::string& names) {
  Dtypes dtypes;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    if (const auto type = type_named(name)) {
      dtypes.add(*type);
    }
  }
  return dtypes;
}

// "floating:0", "given:1", "is:3=2"
Alert alert_when(const std::string& condition, std::string caller) {
  const auto colon = condition.find(':'), equals = condition.find('=');
  const auto name = condition.substr(0, colon);
  using enum Alert::When;
  return {name == "floating" ? floating
          : name == "given"  ? given
          : name == "is"     ? is
                             : always,
          colon == std::string::npos ? 0 : std::stoi(condition.substr(colon + 1)),
          equals == std::string::npos ? "" : condition.substr(equals + 1), std::move(caller)};
}

bool says(const IValue& value, const std::string& expected) {
  return value.isBool()     ? (expected == "true") == value.toBool()
         : value.isInt()    ? std::to_string(value.toInt()) == expected
         : value.isString() ? value.toStringRef() == expected
                            : false;
}

// "0", "0!4=sum" (unless argument 4 is "sum") or "0?4=sum" (if it is)
WithoutKernel lack_of(const std::string& argument, bool sparse, const std::string& names,
                      std::string text) {
  const auto mark = argument.find_first_of("!?"), equals = argument.find('=');
  const bool always = mark == std::string::npos;
  return {std::stoi(argument),
          always ? -1 : std::stoi(argument.substr(mark + 1)),
          always ? "" : argument.substr(equals + 1),
          !always && argument[mark] == '?',
          sparse,
          dtypes_in(names),
          std::move(text)};
}

std::string rest_of(std::istringstream& fields) {
  std::string text;
  std::getline(fields >> std::ws, text);
  return text;
}

const at::Tensor* tensor_in(const IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() && tensor.layout() == c10::kStrided ? &tensor : nullptr;
  }
  if (value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensor()) {
    return &value.toListRef()[0].toTensor();
  }
  return nullptr;
}

bool is_sparse_product(const IValue* factors) {
  return factors[0].isTensor() && factors[1].isTensor() && factors[0].toTensor().is_sparse() &&
         factors[1].toTensor().layout() == c10::kStrided && factors[0].toTensor()._nnz() > 0;
}

std::optional<ScalarType> promoted_type(const IValue* arguments, size_t count) {
  at::native::ResultTypeState state{};
  bool seen = false;
  for (const auto i : c10::irange(count)) {
    if (arguments[i].isTensor() && arguments[i].toTensor().defined()) {
      state = at::native::update_result_type_state(arguments[i].toTensor(), state);
      seen = true;
    }
  }
  return seen ? std::optional(at::native::result_type(state)) : std::nullopt;
}

bool applies(const Alert& alert, const IValue* arguments) {
  const auto& value = arguments[alert.argument];
  switch (alert.when) {
    case Alert::When::always:
      return true;
    case Alert::When::floating:
      return value.isTensor() && !at::isIntegralType(value.toTensor().scalar_type(), true);
    case Alert::When::given:
      return value.isTensor() && value.toTensor().defined();
    case Alert::When::is:
      return says(value, alert.value);
  }
  return false;
}

}  // namespace

const WithoutKernel* Refusals::missing(const IValue* arguments, size_t count,
                                       ScalarType& type) const {
  for (const auto& lack : without_kernel) {
    if (lack.choice >= 0 && says(arguments[lack.choice], lack.chosen) != lack.lacks_chosen) {
      continue;
    }
    if (lack.sparse && !is_sparse_product(arguments + lack.argument)) {
      continue;
    }
    if (lack.argument == WithoutKernel::promoted) {
      const auto found = promoted_type(arguments, count);
      if (found && lack.dtypes.has(*found)) {
        type = *found;
        return &lack;
      }
    } else if (const auto* tensor = lack.sparse ? &arguments[lack.argument].toTensor()
                                                : tensor_in(arguments[lack.argument]);
               tensor != nullptr && lack.dtypes.has(tensor->scalar_type())) {
      type = tensor->scalar_type();
      return &lack;
    }
  }
  return nullptr;
}

void Refusals::refuse_mixed(const IValue* arguments) const {
  for (const auto& same : same_dtypes) {
    const auto *tensor = tensor_in(arguments[same.argument]), *as = tensor_in(arguments[same.as]);
    if (tensor == nullptr || as == nullptr || as->numel() == 0 ||
        tensor->scalar_type() == as->scalar_type()) {
      continue;
    }
    TORCH_CHECK(same.name.empty(), "Input type (", as->toString(), ") and ", same.name, " type (",
                tensor->toString(), ") should be the same");
    TORCH_CHECK(false, "expected scalar type ", as->scalar_type(), " but found ",
                tensor->scalar_type());
  }
}

void Refusals::alert(const IValue* arguments) const {
  for (const auto& alert : alerts) {
    if (applies(alert, arguments)) {
      at::globalContext().alertNotDeterministic(alert.caller);
    }
  }
}

bool read_refusal(const std::string& line) {
  std::istringstream fields(line);
  std::string kind, op, names;
  fields >> kind >> op;
  op = "aten::" + op;
  if (kind == "no-kernel" || kind == "no-sparse-kernel") {
    std::string argument;
    fields >> argument >> names;
    known_refusals()[op].without_kernel.push_back(
        lack_of(argument, kind != "no-kernel", names, rest_of(fields)));
  } else if (kind == "same-dtype") {
    SameDtype same{};
    fields >> same.argument >> same.as >> same.name;
    known_refusals()[op].same_dtypes.push_back(same);
  } else if (kind == "alert") {
    fields >> names;
    known_refusals()[op].alerts.push_back(alert_when(names, rest_of(fields)));
  } else if (kind == "wider") {
    fields >> names;
    known_refusals()[op].wider = dtypes_in(names);
  } else {
    return false;
  }
  return true;
}

void forget_refusals() { known_refusals().clear(); }

const Refusals* refusals_of(const std::string& op) {
  const auto found = known_refusals().find(op);
  return found == known_refusals().end() ? nullptr : &found->second;
}

void refuse_dtype(const WithoutKernel& lack, ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(lack.text.find(' ') != std::string::npos, '"', lack.text,
                              "\" not implemented for '", c10::toString(type), "'");
  auto text = lack.text;
  if (const auto at = text.find('%'); at != std::string::npos) {
    text.replace(at, 1, c10::toString(type));
  }
  TORCH_CHECK(false, text);
}

}  // namespace anydevice
