// What a card refuses although the host could compute it: dtypes without a CUDA kernel, and, where
// the program asks for deterministic algorithms, ops that have none. And the other way round,
// dtypes that only CUDA has a kernel for.
//
// Note [What a card refuses]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// The CPU has kernels that CUDA lacks: a product of integers runs here, and a card says
// `"addmm_cuda" not implemented for 'Long'`. refusals.txt lists such ops by their name in the
// dispatcher, with the dtypes and the text. The list came from PyTorch's own CUDA build
// (tests/conformance/card/README.md says how). An op that is not on it has no entry in its
// Signature and pays nothing; one that is pays for the test of a bit.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace anydevice {

// A set of dtypes.
class Dtypes {
 public:
  void add(c10::ScalarType type) { bits_ |= bit(type); }
  void add(Dtypes others) { bits_ |= others.bits_; }
  bool has(c10::ScalarType type) const { return (bits_ & bit(type)) != 0; }

 private:
  static uint64_t bit(c10::ScalarType type) { return uint64_t{1} << static_cast<int>(type); }

  uint64_t bits_ = 0;
};

// The dtype that the kernel is chosen by is an argument's, or (promoted) that of all together.
struct WithoutKernel {
  static constexpr int promoted = -1;

  int argument;
  int choice;  // another argument, whose value decides; -1: none does
  std::string chosen;
  bool lacks_chosen;  // there is none for this value, or only for it
  bool sparse;        // a sparse tensor's product with a dense one
  Dtypes dtypes;
  std::string text;  // PyTorch's, with % for the dtype; or one word, the name of the kernel
};

// A tensor that the kernel reads as if it had another argument's dtype.
struct SameDtype {
  int argument;
  int as;
  std::string name;  // where the text speaks of "Input type" and of this argument's
};

struct Alert {
  enum class When { always, floating, given, is };

  When when;
  int argument;
  std::string value;  // that it is
  std::string caller;
};

struct Refusals {
  std::vector<WithoutKernel> without_kernel;
  std::vector<SameDtype> same_dtypes;
  std::vector<Alert> alerts;
  Dtypes wider;  // computed in a wider dtype, as the host has no kernel for these

  // What the kernel would be missing: nullptr if it is there.
  const WithoutKernel* missing(const c10::IValue* arguments, size_t count,
                               c10::ScalarType& type) const;
  void refuse_mixed(const c10::IValue* arguments) const;
  void alert(const c10::IValue* arguments) const;
};

// A line of refusals.txt; false: it is none.
bool read_refusal(const std::string& line);
void forget_refusals();
const Refusals* refusals_of(const std::string& op);  // "aten::mm", "aten::mm.out"

[[noreturn]] void refuse_dtype(const WithoutKernel& lack, c10::ScalarType type);

}  // namespace anydevice
