// Reductions, products, the layers of networks, and random numbers.
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <numeric>

#include "operators.h"

using namespace emu;

// ---- reductions, over all dimensions if none is given ----

static at::OptionalIntArrayRef some(Ints dims) { return dims.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dims); }
OPERATOR(aclnnAll, In x, Ints dims, bool keep, Out out) { at::all_out(out, x, some(dims), keep); }
OPERATOR(aclnnAny, In x, Ints dims, bool keep, Out out) { at::any_out(out, x, some(dims), keep); }
OPERATOR(aclnnAmax, In x, Ints dims, bool keep, Out out) { at::amax_out(out, x, dims, keep); }
OPERATOR(aclnnAmin, In x, Ints dims, bool keep, Out out) { at::amin_out(out, x, dims, keep); }
OPERATOR(aclnnArgMax, In x, int64_t dim, bool keep, Out out) { at::argmax_out(out, x, dim, keep); }
OPERATOR(aclnnArgMin, In x, int64_t dim, bool keep, Out out) { at::argmin_out(out, x, dim, keep); }
OPERATOR(aclnnCumsum, In x, int64_t dim, ScalarType type, Out out) { at::cumsum_out(out, x, dim, type); }
OPERATOR(aclnnEqual, In x, In y, Out out) { out.fill_(at::equal(x, y)); }
OPERATOR(aclnnMax, In x, Out out) { at::max_out(out, x); }
OPERATOR(aclnnMin, In x, Out out) { at::min_out(out, x); }
OPERATOR(aclnnMaxDim, In x, int64_t dim, bool keep, Out values, Out indices) { at::max_out(values, indices, x, dim, keep); }
OPERATOR(aclnnMinDim, In x, int64_t dim, bool keep, Out values, Out indices) { at::min_out(values, indices, x, dim, keep); }
OPERATOR(aclnnMean, In x, Ints dims, bool keep, ScalarType type, Out out) { at::mean_out(out, x, some(dims), keep, type); }
OPERATOR(aclnnReduceSum, In x, Ints dims, bool keep, ScalarType type, Out out) { at::sum_out(out, x, some(dims), keep, type); }
OPERATOR(aclnnProd, In x, ScalarType type, Out out) { out.copy_(at::prod(x, type)); }

// ---- products; how the cube unit may round (the int8_t) means nothing to a CPU ----

OPERATOR(aclnnMatmul, In x, In y, Out out, int8_t) { at::matmul_out(out, x, y); }
OPERATOR(aclnnMm, In x, In y, Out out, int8_t) { at::mm_out(out, x, y); }
OPERATOR(aclnnBatchMatMul, In x, In y, Out out, int8_t) { at::bmm_out(out, x, y); }
OPERATOR(aclnnMv, In x, In y, Out out, int8_t) { at::mv_out(out, x, y); }
OPERATOR(aclnnDot, In x, In y, Out out) { at::dot_out(out, x, y); }
OPERATOR(aclnnAddmm, In z, In x, In y, Number beta, Number alpha, Out out, int8_t) { at::addmm_out(out, z, x, y, beta, alpha); }
OPERATOR(aclnnInplaceAddmm, Out z, In x, In y, Number beta, Number alpha, int8_t) { z.addmm_(x, y, beta, alpha); }
OPERATOR(aclnnBaddbmm, In z, In x, In y, Number beta, Number alpha, Out out, int8_t) { at::baddbmm_out(out, z, x, y, beta, alpha); }

// ---- layers ----

// torch_npu does not say which approximation it wants; this is the exact one.
OPERATOR(aclnnGelu, In x, Out out) { at::gelu_out(out, x); }
OPERATOR(aclnnSoftmax, In x, int64_t dim, Out out) { at::_softmax_out(out, x.to(out.scalar_type()), dim, false); }
OPERATOR(aclnnLogSoftmax, In x, int64_t dim, Out out) { at::_log_softmax_out(out, x.to(out.scalar_type()), dim, false); }
OPERATOR(aclnnLayerNorm, In x, Ints shape, In weight, In bias, double epsilon, Out out, Out mean, Out deviation) {
  auto results = at::native_layer_norm(x, shape, weight, bias, epsilon);
  out.copy_(std::get<0>(results));
  if (mean.defined()) mean.copy_(std::get<1>(results));
  if (deviation.defined()) deviation.copy_(std::get<2>(results));
}
OPERATOR(aclnnRmsNorm, In x, In weight, double epsilon, Out out, Out deviation) {
  std::vector<int64_t> dims(weight.dim());
  std::iota(dims.begin(), dims.end(), x.dim() - weight.dim());
  out.copy_(at::rms_norm(x, weight.sizes(), weight, epsilon));
  deviation.copy_(at::rsqrt(at::mean(at::square(x.to(at::kFloat)), dims, true) + epsilon));
}
OPERATOR(aclnnSwiGlu, In x, int64_t dim, Out out) {
  auto halves = x.chunk(2, dim);
  out.copy_(at::silu(halves[0]) * halves[1]);
}

// Attention over [batch, heads, tokens, width]; `hidden` is true where a key is NOT seen. The statistics of the softmax serve
// only a backward pass, which is not emulated: they are NaN, so that nobody reads them unnoticed.
constexpr int64_t kMasked = 0, kCausal = 2, kAll = 2147483647;
OPERATOR_WHERE(layout == "BNSD" && keep == 1 && !shift.defined() && !dropped.defined() && !padding.defined() && prefix.empty() &&
                   (sparse == kCausal || (sparse == kMasked && before >= kAll && after >= kAll)),
               aclnnFlashAttentionScore, In query, In key, In value, In shift, In dropped, In padding, In hidden, Ints prefix, double scale,
               double keep, int64_t before, int64_t after, int64_t heads, Text layout, int64_t precision, int64_t sparse, Out largest,
               Out sum, Out softmax, Out out) {
  bool causal = sparse == kCausal, grouped = query.size(1) != key.size(1);
  auto seen = causal || !hidden.defined() ? std::nullopt : std::optional(at::logical_not(hidden));
  out.copy_(at::scaled_dot_product_attention(query, key, value, seen, 0.0, causal, scale, grouped));
  for (auto* statistic : {&largest, &sum}) statistic->fill_(NAN);
}

// ---- random numbers: of seed and offset alone, but not those of an NPU ----

static at::Generator generator(int64_t seed, int64_t offset) {
  auto mixed = static_cast<uint64_t>(seed) ^ static_cast<uint64_t>(offset) * 0x9E3779B97F4A7C15u;
  return at::make_generator<at::CPUGeneratorImpl>(mixed);
}
OPERATOR(aclnnInplaceNormal, Out x, float mean, float deviation, int64_t seed, int64_t offset) {
  x.normal_(mean, deviation, generator(seed, offset));
}
OPERATOR(aclnnInplaceRandom, Out x, int64_t from, int64_t to, int64_t seed, int64_t offset) {
  x.random_(from, to, generator(seed, offset));
}
OPERATOR(aclnnInplaceUniform, Out x, double from, double to, int64_t seed, int64_t offset) {
  x.uniform_(from, to, generator(seed, offset));
}
OPERATOR(aclnnMultinomial, In weights, int64_t count, bool again, int64_t seed, int64_t offset, Out out) {
  at::multinomial_out(out, weights, count, again, generator(seed, offset));
}
OPERATOR(aclnnRandperm, int64_t n, int64_t seed, int64_t offset, Out out) { at::randperm_out(out, n, generator(seed, offset)); }
