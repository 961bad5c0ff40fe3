// Operators that compute each element of the output from the elements at its place.
#include "operators.h"

using namespace emu;

// ---- of one tensor ----

// An operator, and the same in place: torch_npu has a name for each.
#define UNARY(NAME, FUNCTION)                                            \
  OPERATOR(aclnn##NAME, In x, Out out) { at::FUNCTION##_out(out, x); } \
  OPERATOR(aclnnInplace##NAME, Out x) { at::FUNCTION##_(x); }

UNARY(Cos, cos)
UNARY(Erf, erf)
UNARY(Exp, exp)
UNARY(Floor, floor)
UNARY(Log, log)
UNARY(Log1p, log1p)
UNARY(Reciprocal, reciprocal)
UNARY(Relu, relu)
UNARY(Rsqrt, rsqrt)
UNARY(Sigmoid, sigmoid)
UNARY(Sin, sin)
UNARY(Sqrt, sqrt)
UNARY(Tanh, tanh)
OPERATOR(aclnnAbs, In x, Out out) { at::abs_out(out, x); }
OPERATOR(aclnnBitwiseNot, In x, Out out) { at::bitwise_not_out(out, x); }
OPERATOR(aclnnCeil, In x, Out out) { at::ceil_out(out, x); }
OPERATOR(aclnnIsFinite, In x, Out out) { out.copy_(at::isfinite(x)); }
OPERATOR(aclnnLogicalNot, In x, Out out) { at::logical_not_out(out, x); }
OPERATOR(aclnnNeg, In x, Out out) { at::neg_out(out, x); }
OPERATOR(aclnnRound, In x, Out out) { at::round_out(out, x); }
OPERATOR(aclnnSign, In x, Out out) { at::sign_out(out, x); }
OPERATOR(aclnnSilu, In x, Out out) { at::silu_out(out, x); }

// ---- arithmetic of two tensors, and of a tensor and a number (...s) ----

OPERATOR(aclnnAdd, In x, In y, Number alpha, Out out) { at::add_out(out, x, y, alpha); }
OPERATOR(aclnnAdds, In x, Number y, Number alpha, Out out) { out.copy_(at::add(x, y, alpha)); }
OPERATOR(aclnnInplaceAdd, Out x, In y, Number alpha) { x.add_(y, alpha); }
OPERATOR(aclnnInplaceAdds, Out x, Number y, Number alpha) { x.add_(y, alpha); }
OPERATOR(aclnnSub, In x, In y, Number alpha, Out out) { at::sub_out(out, x, y, alpha); }
OPERATOR(aclnnSubs, In x, Number y, Number alpha, Out out) { out.copy_(at::sub(x, y, alpha)); }
OPERATOR(aclnnInplaceSub, Out x, In y, Number alpha) { x.sub_(y, alpha); }
OPERATOR(aclnnInplaceSubs, Out x, Number y, Number alpha) { x.sub_(y, alpha); }
OPERATOR(aclnnRsub, In x, In y, Number alpha, Out out) { out.copy_(at::rsub(x, y, alpha)); }
OPERATOR(aclnnRsubs, In x, Number y, Number alpha, Out out) { out.copy_(at::rsub(x, y, alpha)); }
OPERATOR(aclnnMul, In x, In y, Out out) { at::mul_out(out, x, y); }
OPERATOR(aclnnMuls, In x, Number y, Out out) { out.copy_(at::mul(x, y)); }
OPERATOR(aclnnInplaceMul, Out x, In y) { x.mul_(y); }
OPERATOR(aclnnInplaceMuls, Out x, Number y) { x.mul_(y); }
OPERATOR(aclnnDiv, In x, In y, Out out) { at::div_out(out, x, y); }
OPERATOR(aclnnDivs, In x, Number y, Out out) { out.copy_(at::div(x, y)); }
OPERATOR(aclnnInplaceDiv, Out x, In y) { x.div_(y); }
OPERATOR(aclnnInplaceDivs, Out x, Number y) { x.div_(y); }

static std::optional<c10::string_view> rounding(int mode) {
  if (mode == 0) return std::nullopt;
  return mode == 1 ? "trunc" : "floor";
}
OPERATOR(aclnnDivMod, In x, In y, int mode, Out out) { at::div_out(out, x, y, rounding(mode)); }
OPERATOR(aclnnDivMods, In x, Number y, int mode, Out out) { out.copy_(at::div(x, y, rounding(mode))); }
OPERATOR(aclnnFloorDivide, In x, In y, Out out) { at::floor_divide_out(out, x, y); }
OPERATOR(aclnnFloorDivides, In x, Number y, Out out) { out.copy_(at::floor_divide(x, y)); }
OPERATOR(aclnnRemainderTensorTensor, In x, In y, Out out) { at::remainder_out(out, x, y); }
OPERATOR(aclnnRemainderTensorScalar, In x, Number y, Out out) { at::remainder_out(out, x, y); }
OPERATOR(aclnnPowTensorTensor, In x, In y, Out out) { at::pow_out(out, x, y); }
OPERATOR(aclnnPowTensorScalar, In x, Number y, Out out) { at::pow_out(out, x, y); }
OPERATOR(aclnnPowScalarTensor, Number x, In y, Out out) { at::pow_out(out, x, y); }
OPERATOR(aclnnMaximum, In x, In y, Out out) { at::maximum_out(out, x, y); }
OPERATOR(aclnnMinimum, In x, In y, Out out) { at::minimum_out(out, x, y); }
OPERATOR(aclnnClamp, In x, MaybeNumber low, MaybeNumber high, Out out) { at::clamp_out(out, x, low, high); }
OPERATOR(aclnnClampMin, In x, Number low, Out out) { at::clamp_min_out(out, x, low); }
OPERATOR(aclnnClampMax, In x, Number high, Out out) { at::clamp_max_out(out, x, high); }

// ---- comparison and logic, of two tensors and of a tensor and a number ----

#define BINARY(NAME, FUNCTION)                                                           \
  OPERATOR(aclnn##NAME##Tensor, In x, In y, Out out) { at::FUNCTION##_out(out, x, y); } \
  OPERATOR(aclnn##NAME##Scalar, In x, Number y, Out out) { at::FUNCTION##_out(out, x, y); }

BINARY(Eq, eq)
BINARY(Ne, ne)
BINARY(Lt, lt)
BINARY(Le, le)
BINARY(Gt, gt)
BINARY(Ge, ge)
BINARY(BitwiseAnd, bitwise_and)
BINARY(BitwiseOr, bitwise_or)
BINARY(BitwiseXor, bitwise_xor)
OPERATOR(aclnnLogicalAnd, In x, In y, Out out) { at::logical_and_out(out, x, y); }
OPERATOR(aclnnLogicalOr, In x, In y, Out out) { at::logical_or_out(out, x, y); }
OPERATOR(aclnnLogicalXor, In x, In y, Out out) { at::logical_xor_out(out, x, y); }
OPERATOR(aclnnLeftShift, In x, In y, Out out) { at::bitwise_left_shift_out(out, x, y); }
OPERATOR(aclnnLeftShifts, In x, Number y, Out out) { at::bitwise_left_shift_out(out, x, y); }
OPERATOR(aclnnRightShift, In x, In y, Out out) { at::bitwise_right_shift_out(out, x, y); }
OPERATOR(aclnnSWhere, In condition, In x, In y, Out out) { at::where_out(out, condition, x, y); }
