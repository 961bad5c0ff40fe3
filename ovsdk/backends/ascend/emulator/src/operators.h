// An operator of the emulated NPU is one line: its name, its parameters, and what it does with ATen's CPU kernels.
//
//     OPERATOR(aclnnTril, In x, int64_t diagonal, Out out) { at::tril_out(out, x, diagonal); }
//
// torch_npu finds two C functions by name: aclnnTrilGetWorkspaceSize, whose parameters are the operator's and two pointers
// more, makes an executor; aclnnTril(workspace, size, executor, stream) enqueues it and uses it up. The signature of the first
// follows from the body's, so its symbol is resolved to an instance of `plan` (GNU ifunc) and nowhere written out.
//
// Arguments are copied when an operator is planned, for torch_npu destroys them once it is enqueued; its tensors are views of
// emulated device memory, and a replayed graph runs the same body again. Names, order and types of parameters are those with
// which torch_npu 2.13 calls. Numbers are the CPU's: nothing is said of an NPU's rounding.
//
// A call that an operator was not written for is refused when it is planned. What ATen refuses only when it runs, such as an
// index out of range, the body throws, and the device stops.
#pragma once
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "runtime.h"

// What torch_npu makes and destroys by aclCreate... and aclDestroy...; it never looks inside.
struct aclTensor {
  at::Tensor view;  // at the address that a stream's thread may touch; not defined for elements that are not emulated
  int data_type;
};
struct aclScalar {
  at::Scalar value;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclTensorList {
  std::vector<aclTensor*> tensors;
};
struct aclOpExecutor {
  const char* name;
  std::function<void()> body;
  int64_t elements;
};

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

namespace emu {

using at::Scalar, at::ScalarType, at::Tensor;

// The types of operators' parameters, besides numbers and ScalarType.
using In = const Tensor&;                        // not defined where torch_npu gives none
using Out = Tensor&;                             // the operator writes it
using Sized = aclTensor*;                        // an output of which only the operator knows the shape
using Ins = at::TensorList;
using Number = const Scalar&;
using MaybeNumber = const std::optional<Scalar>&;
using Ints = at::IntArrayRef;                    // empty where torch_npu gives none
using Text = const std::string&;

// The element type of an aclDataType, if it is emulated.
std::optional<ScalarType> element_type(int data_type);

// How a parameter crosses the C interface (Wire), and is kept until the operator runs (Kept).
template <class Parameter>
struct Argument {
  static_assert(std::is_arithmetic_v<Parameter>, "an operator's parameter is a number or one of the types above");
  using Wire = Parameter;
  using Kept = Parameter;
  static Kept keep(Wire number) { return number; }
};

template <>
struct Argument<In> {
  using Wire = const aclTensor*;
  using Kept = Tensor;
  static Kept keep(Wire tensor) {
    TORCH_CHECK(!tensor || tensor->view.defined(), "for elements of ACL's type ", tensor->data_type);
    return tensor ? tensor->view : Tensor();
  }
};

template <>
struct Argument<Out> : Argument<In> {};

template <>
struct Argument<Sized> {  // torch_npu keeps it until it has asked for the shape
  using Wire = aclTensor*;
  using Kept = aclTensor*;
  static Kept keep(Wire tensor) { return tensor; }
};

template <>
struct Argument<Ins> {
  using Wire = const aclTensorList*;
  using Kept = std::vector<Tensor>;
  static Kept keep(Wire list) {
    Kept tensors;
    for (auto* tensor : list ? list->tensors : std::vector<aclTensor*>()) tensors.push_back(Argument<In>::keep(tensor));
    return tensors;
  }
};

template <>
struct Argument<Number> {
  using Wire = const aclScalar*;
  using Kept = Scalar;
  static Kept keep(Wire scalar) {
    TORCH_CHECK(scalar, "without a number");
    return scalar->value;
  }
};

template <>
struct Argument<MaybeNumber> {
  using Wire = const aclScalar*;
  using Kept = std::optional<Scalar>;
  static Kept keep(Wire scalar) { return scalar ? Kept(scalar->value) : Kept(); }
};

template <>
struct Argument<Ints> {
  using Wire = const aclIntArray*;
  using Kept = std::vector<int64_t>;
  static Kept keep(Wire array) { return array ? array->values : Kept(); }
};

template <>
struct Argument<Text> {
  using Wire = const char*;
  using Kept = std::string;
  static Kept keep(Wire text) { return text ? text : ""; }
};

template <>
struct Argument<ScalarType> {
  using Wire = int;
  using Kept = ScalarType;
  static Kept keep(Wire data_type) {
    auto type = element_type(data_type);
    TORCH_CHECK(type, "for elements of ACL's type ", data_type);
    return *type;
  }
};

template <class Parameter, class Kept>
int64_t written(const Kept& kept) {
  if constexpr (std::is_same_v<Parameter, Out>) return kept.defined() ? kept.numel() : 0;
  return 0;
}

// What ATen says, without its stack.
std::string text(const std::exception& error);

// Makes the executor of one call: it needs no workspace, and its size is that of its largest output.
template <class... Parameters>
struct Plan {
  template <const char* const& Name, auto Check, auto Run>
  static int plan(typename Argument<Parameters>::Wire... arguments, uint64_t* workspace, aclOpExecutor** executor) try {
    auto kept = std::make_tuple(Argument<Parameters>::keep(arguments)...);
    std::apply(Check, kept);
    auto elements = std::apply([](auto&... each) { return std::max({int64_t{0}, written<Parameters>(each)...}); }, kept);
    auto body = [kept]() mutable {
      c10::InferenceMode no_gradient;
      try {
        std::apply(Run, kept);
      } catch (const std::exception& error) {
        throw std::runtime_error(text(error));
      }
    };
    *workspace = 0;
    *executor = new aclOpExecutor{Name, std::move(body), elements};
    return 0;
  } catch (const std::exception& error) {
    return not_emulated((std::string(Name) + " " + text(error)).c_str());
  }
};

template <const char* const& Name, auto Check, auto Run, class... Parameters>
auto planner(void (*)(Parameters...)) {
  return reinterpret_cast<void (*)()>(&Plan<Parameters...>::template plan<Name, Check, Run>);
}

// Enqueues and uses up the executor.
int launch(aclOpExecutor* executor, void* stream);

// Notes that there is an operator of this name; see `emu_operators`.
bool list(const char* name);

}  // namespace emu

#define OPERATOR(NAME, ...) OPERATOR_WHERE(true, NAME, __VA_ARGS__)

// An operator for calls of which CONDITION, an expression of its parameters, is true.
#define OPERATOR_WHERE(CONDITION, NAME, ...)                                                                            \
  static void NAME##_check(__VA_ARGS__) { TORCH_CHECK(CONDITION, "unless " #CONDITION); }                               \
  static void NAME##_run(__VA_ARGS__);                                                                                  \
  static constexpr const char* NAME##_name = #NAME;                                                                     \
  [[maybe_unused]] static const bool NAME##_listed = emu::list(#NAME);                                                  \
  extern "C" {                                                                                                          \
  __attribute__((used)) static void (*NAME##_resolve())() {                                                             \
    return emu::planner<NAME##_name, NAME##_check, NAME##_run>(NAME##_run);                                             \
  }                                                                                                                     \
  __attribute__((visibility("default"), ifunc(#NAME "_resolve"))) void NAME##GetWorkspaceSize();                        \
  }                                                                                                                     \
  EMU_EXPORT int NAME(void*, uint64_t, aclOpExecutor* executor, void* stream) { return emu::launch(executor, stream); } \
  static void NAME##_run(__VA_ARGS__)
