// Operators that make, move, choose or order elements and compute nothing from them.
#include "operators.h"

using namespace emu;

// ---- copies and constants ----

OPERATOR(aclnnInplaceCopy, Out to, In from) { to.copy_(from); }
OPERATOR(aclnnCast, In x, ScalarType, Out out) { out.copy_(x); }
OPERATOR(aclnnInplaceZero, Out x) { x.zero_(); }
OPERATOR(aclnnInplaceOne, Out x) { x.fill_(1); }
OPERATOR(aclnnInplaceFillScalar, Out x, Number value) { x.fill_(value); }
OPERATOR(aclnnInplaceFillTensor, Out x, In value) { x.fill_(value.squeeze()); }
OPERATOR(aclnnArange, Number start, Number end, Number step, Out out) { at::arange_out(out, start, end, step); }
OPERATOR(aclnnLinspace, Number start, Number end, int64_t steps, Out out) { at::linspace_out(out, start, end, steps); }
OPERATOR(aclnnEye, int64_t rows, int64_t columns, Out out) { at::eye_out(out, rows, columns); }

// ---- layout ----

OPERATOR(aclnnCat, Ins tensors, int64_t dim, Out out) { at::cat_out(out, tensors, dim); }
OPERATOR(aclnnStack, Ins tensors, int64_t dim, Out out) { at::stack_out(out, tensors, dim); }
OPERATOR(aclnnConstantPadNd, In x, Ints pad, Number value, Out out) { at::constant_pad_nd_out(out, x, pad, value); }
OPERATOR(aclnnFlip, In x, Ints dims, Out out) { at::flip_out(out, x, dims); }
OPERATOR(aclnnRepeat, In x, Ints repeats, Out out) { at::repeat_out(out, x, repeats); }
OPERATOR(aclnnRoll, In x, Ints shifts, Ints dims, Out out) { at::roll_out(out, x, shifts, dims); }
OPERATOR(aclnnTril, In x, int64_t diagonal, Out out) { at::tril_out(out, x, diagonal); }
OPERATOR(aclnnTriu, In x, int64_t diagonal, Out out) { at::triu_out(out, x, diagonal); }

// ---- indexing ----

// torch_npu gives an empty tensor for a dimension that is taken whole, and expands the other indices to one shape: where all
// are empty, nothing is chosen.
static bool nothing(Ins indices) {
  return std::all_of(indices.begin(), indices.end(), [](In index) { return index.numel() == 0; });
}
static c10::List<std::optional<Tensor>> chosen(Ins indices) {
  c10::List<std::optional<Tensor>> some;
  for (In index : indices) some.push_back(index.numel() ? std::optional(index) : std::nullopt);
  return some;
}
OPERATOR(aclnnIndex, In x, Ins indices, Out out) {
  if (!nothing(indices)) at::index_out(out, x, chosen(indices));
}
OPERATOR(aclnnIndexPutImpl, Out x, Ins indices, In values, bool accumulate, bool unsafe) {
  if (!nothing(indices)) at::_index_put_impl_(x, chosen(indices), values, accumulate, unsafe);
}
OPERATOR(aclnnEmbedding, In table, In index, Out out) { at::embedding_out(out, table, index); }
OPERATOR(aclnnGather, In x, int64_t dim, In index, Out out) { at::gather_out(out, x, dim, index); }
OPERATOR(aclnnIndexSelect, In x, int64_t dim, In index, Out out) { at::index_select_out(out, x, dim, index); }
OPERATOR(aclnnInplaceMaskedFillScalar, Out x, In mask, Number value) { x.masked_fill_(mask, value); }
OPERATOR(aclnnInplaceMaskedFillTensor, Out x, In mask, In value) { x.masked_fill_(mask, value.squeeze()); }

constexpr int64_t kReplace = 0;
OPERATOR_WHERE(how == kReplace, aclnnScatter, In x, int64_t dim, In index, In from, int64_t how, Out out) {
  at::scatter_out(out, x, dim, index, from);
}
OPERATOR_WHERE(how == kReplace, aclnnScatterValue, In x, int64_t dim, In index, Number value, int64_t how, Out out) {
  at::scatter_out(out, x, dim, index, value);
}
OPERATOR_WHERE(how == kReplace, aclnnInplaceScatter, Out x, int64_t dim, In index, In from, int64_t how) { x.scatter_(dim, index, from); }
OPERATOR_WHERE(how == kReplace, aclnnInplaceScatterValue, Out x, int64_t dim, In index, Number value, int64_t how) {
  x.scatter_(dim, index, value);
}
OPERATOR(aclnnScatterAdd, In x, int64_t dim, In index, In from, Out out) { out.copy_(at::scatter_add(x, dim, index, from)); }

// ---- as many as there are ----

// torch_npu gives a buffer for the most there can be, waits for the operator, and asks for the shape.
static void put(Sized out, In result) {
  auto view = out->view.flatten().narrow(0, 0, result.numel()).view(result.sizes());
  view.copy_(result);
  out->view = view;
}
OPERATOR(aclnnMaskedSelect, In x, In mask, Sized out) { put(out, at::masked_select(x, mask)); }
OPERATOR(aclnnNonzero, In x, Sized out) { put(out, at::nonzero(x)); }
OPERATOR(aclnnNonzeroV2, In x, Sized out) { put(out, at::nonzero(x).t()); }

// ---- order ----

OPERATOR(aclnnSort, In x, bool stable, int64_t dim, bool descending, Out values, Out indices) {
  at::sort_out(values, indices, x, stable, dim, descending);
}
OPERATOR(aclnnTopk, In x, int64_t k, int64_t dim, bool largest, bool sorted, Out values, Out indices) {
  at::topk_out(values, indices, x, k, dim, largest, sorted);
}
