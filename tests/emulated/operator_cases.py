"""For each operator of the emulated NPU a call that torch_npu lowers to it, on tensors drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .draw import Draw

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NUMBERS = FLOATS + INTS
ALL = (*NUMBERS, torch.bool)


Call = tuple[Callable[..., Any], tuple[Any, ...]]
Case = Callable[[Draw], Call]
"""Gives a function and its arguments; View arguments are put on a device first."""


def unary(function: Callable[..., Any], dtypes: Sequence[torch.dtype] = FLOATS) -> Case:
    return lambda d: (function, (d.any(dtypes),))


def binary(function: Callable[..., Any], dtypes: Sequence[torch.dtype] = NUMBERS) -> Case:
    return lambda d: (function, d.pair(dtypes))


def divided(function: Callable[..., Any], dtypes: Sequence[torch.dtype] = NUMBERS) -> Case:
    """No element of the second is zero: an integer division by it is an error on a CPU."""

    def case(d: Draw) -> Call:
        x, y = d.pair(dtypes)
        y.base[y.base == 0] = 1
        return function, (x, y)

    return case


def scalar(function: Callable[..., Any], dtypes: Sequence[torch.dtype] = NUMBERS) -> Case:
    def case(d: Draw) -> Call:
        x = d.any(dtypes)
        return function, (x, d.scalar(x))

    return case


def along(function: Callable[..., Any], dtypes: Sequence[torch.dtype] = FLOATS, *rest: Any) -> Case:
    """`function(x, dim, *rest)` over a dimension that is not empty."""

    def case(d: Draw) -> Call:
        x = d.any(dtypes, d.random.randint(1, 3), least=1)
        return function, (x, d.dim(x), *rest)

    return case


def distinct(function: Callable[..., Any], *rest: Any) -> Case:
    """The same where no two elements are equal: which of equal ones comes first is nobody's promise."""

    def case(d: Draw) -> Call:
        shape, dtype = d.shape(d.random.randint(1, 3), least=1), d.dtype((torch.float32, torch.int64, torch.int32))
        x = d.tensor(shape, dtype, torch.randperm(torch.Size(shape).numel(), generator=d.generator))
        return function, (x, d.dim(x), *rest)

    return case


def matrices(function: Callable[..., Any], *shapes: str) -> Case:
    """Arguments whose shapes are spelt in letters; the same letter is the same size."""

    def case(d: Draw) -> Call:
        size, dtype = {letter: d.random.randint(1, 6) for letter in "bmkn"}, d.dtype(FLOATS)
        return function, tuple(d.tensor([size[letter] for letter in shape], dtype) for shape in shapes)

    return case


def picked(function: Callable[..., Any], source: bool) -> Case:
    """`function(x, dim, index[, source])`; no index twice along `dim`, for which of two writes is last is nobody's promise."""

    def case(d: Draw) -> Call:
        x = d.any(ALL, d.random.randint(1, 3), least=1)
        dim = d.dim(x)
        places = torch.stack([torch.randperm(x.size[dim], generator=d.generator) for _ in range(x.base.numel())])
        index = torch.empty(x.size, dtype=torch.int64).transpose(dim, -1)
        index.copy_(places[: index[..., 0].numel()].reshape(index.shape))
        arguments = (x, dim, d.tensor(x.size, torch.int64, index.transpose(dim, -1)))
        return function, (*arguments, d.tensor(x.size, x.base.dtype)) if source else arguments

    return case


def index(d: Draw) -> Call:
    x = d.any(ALL, 3, least=1)
    chosen = d.shape(1)
    rows, columns = d.indices(chosen, x.size[0]), d.indices(chosen, x.size[2])
    return (lambda x, rows, columns: x[rows, :, columns]), (x, rows, columns)


def index_put(d: Draw) -> Call:
    """As `resident.decode` writes its cache: a row each, no place twice."""
    x = d.any(ALL, 3, least=1)
    rows = d.tensor(x.size[:1], torch.int64, torch.randperm(x.size[0], generator=d.generator))
    columns, values = d.indices(x.size[:1], x.size[2]), d.tensor(x.size[:2], x.base.dtype)

    def put(x: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> None:
        x[rows, :, columns] = values

    return put, (x, rows, columns, values)


def masked(function: Callable[..., Any], *rest: Any) -> Case:
    def case(d: Draw) -> Call:
        x = d.any(NUMBERS)
        return function, (x, d.tensor(x.size, torch.bool), *rest)

    return case


def several(function: Callable[..., Any]) -> Case:
    def case(d: Draw) -> Call:
        shape, dtype = d.shape(d.random.randint(1, 3)), d.dtype(ALL)
        dim = d.random.randrange(len(shape))
        return (lambda *x: function(x, dim)), tuple(d.tensor(shape, dtype) for _ in range(d.random.randint(1, 3)))

    return case


def embedded(d: Draw) -> Call:
    table = d.tensor(d.shape(2, least=1), d.dtype(FLOATS), strided=False)
    return (lambda table, index: F.embedding(index, table)), (table, d.indices(d.shape(), table.size[0]))


def indexed(d: Draw) -> Call:
    x = d.any(ALL, d.random.randint(1, 3), least=1)
    dim = d.dim(x)
    return torch.index_select, (x, dim, d.indices(d.shape(1), x.size[dim]))


def where(d: Draw) -> Call:
    x, y = d.pair(ALL)
    return torch.where, (d.tensor(x.size, torch.bool), x, y)


def attention(d: Draw) -> Call:
    """Grouped heads; causal, masked or neither; no row sees nothing."""
    batch, kv_heads, tokens, width = 2, d.random.randint(1, 2), d.random.randint(1, 5), 8
    heads, dtype, mode = kv_heads * d.random.randint(1, 3), d.dtype(FLOATS), d.random.choice(("causal", "masked", "all"))
    q, k, v = (d.tensor((batch, n, tokens, width), dtype) for n in (heads, kv_heads, kv_heads))
    if mode == "masked":
        seen = d.tensor((batch, 1, tokens, tokens), torch.bool, torch.rand((batch, 1, tokens, tokens), generator=d.generator) < 0.5)
        seen.base.as_strided(seen.size, seen.stride, seen.offset)[..., 0] = True
        return (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True)), (q, k, v, seen)
    causal = mode == "causal"
    return (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)), (q, k, v)


def made(function: Callable[..., Any], *arguments: Any) -> Case:
    """`function(*arguments, device=...)`, on the device of a tensor that is not read."""
    return lambda d: (lambda x: function(*arguments, device=x.device), (d.any(FLOATS),))


def special(function: Callable[..., Any], meaning: Callable[..., Any], *shapes: str) -> Case:
    """An operator that only torch_npu has, by what it means on a CPU."""
    return matrices(lambda x, *rest: (meaning if x.device.type == "cpu" else function)(x, *rest), *shapes)


CASES: dict[str, Case] = {
    # elements of one tensor
    "aclnnAbs": unary(torch.abs, NUMBERS),
    "aclnnBitwiseNot": unary(torch.bitwise_not, (*INTS, torch.bool)),
    "aclnnCeil": unary(torch.ceil),
    "aclnnCos": unary(torch.cos),
    "aclnnErf": unary(torch.erf),
    "aclnnExp": unary(torch.exp),
    "aclnnFloor": unary(torch.floor),
    "aclnnGelu": unary(F.gelu),
    "aclnnInplaceCos": unary(torch.cos_),
    "aclnnInplaceErf": unary(torch.erf_),
    "aclnnInplaceExp": unary(torch.exp_),
    "aclnnInplaceFloor": unary(torch.floor_),
    "aclnnInplaceLog": unary(torch.log_),
    "aclnnInplaceLog1p": unary(torch.log1p_),
    "aclnnInplaceReciprocal": unary(torch.reciprocal_),
    "aclnnInplaceRelu": unary(torch.relu_),
    "aclnnInplaceRsqrt": unary(torch.rsqrt_),
    "aclnnInplaceSigmoid": unary(torch.sigmoid_),
    "aclnnInplaceSin": unary(torch.sin_),
    "aclnnInplaceSqrt": unary(torch.sqrt_),
    "aclnnInplaceTanh": unary(torch.tanh_),
    "aclnnIsFinite": unary(lambda x: torch.isfinite(x / (x > 1))),
    "aclnnLog": unary(torch.log),
    "aclnnLog1p": unary(torch.log1p),
    "aclnnLogicalNot": unary(torch.logical_not, ALL),
    "aclnnNeg": unary(torch.neg, FLOATS + INTS[:3]),
    "aclnnReciprocal": unary(torch.reciprocal),
    "aclnnRelu": unary(torch.relu),
    "aclnnRound": unary(torch.round),
    "aclnnRsqrt": unary(torch.rsqrt),
    "aclnnSigmoid": unary(torch.sigmoid),
    "aclnnSign": unary(torch.sign, NUMBERS),
    "aclnnSilu": unary(F.silu),
    "aclnnSin": unary(torch.sin),
    "aclnnSqrt": unary(torch.sqrt),
    "aclnnTanh": unary(torch.tanh),
    # arithmetic
    "aclnnAdd": binary(lambda x, y: torch.add(x, y, alpha=2)),
    "aclnnAdds": scalar(lambda x, s: torch.add(x, s, alpha=2)),
    "aclnnClamp": unary(lambda x: torch.clamp(x, -2, 3), FLOATS + INTS[:3]),
    "aclnnClampMax": unary(lambda x: torch.clamp_max(x, 1), FLOATS + INTS[:3]),
    "aclnnClampMin": unary(lambda x: torch.clamp_min(x, 1), FLOATS + INTS[:3]),
    "aclnnDiv": divided(torch.div),
    "aclnnDivMod": divided(lambda x, y: torch.div(x, y, rounding_mode="trunc"), (torch.float32, *INTS)),
    "aclnnDivMods": scalar(lambda x, y: torch.div(x, y, rounding_mode="floor"), (torch.float32, *INTS)),
    "aclnnDivs": scalar(torch.div),
    "aclnnFloorDivide": divided(torch.floor_divide, (torch.float32, *INTS)),
    "aclnnFloorDivides": scalar(torch.floor_divide, (torch.float32, *INTS)),
    "aclnnInplaceAdd": scalar(lambda x, s: x.add_(x.clone(), alpha=2)),
    "aclnnInplaceAdds": scalar(lambda x, s: x.add_(s, alpha=2)),
    "aclnnInplaceDiv": unary(lambda x: x.div_(x.clone() + 20)),
    "aclnnInplaceDivs": scalar(lambda x, s: x.div_(s), FLOATS),
    "aclnnInplaceMul": scalar(lambda x, s: x.mul_(x.clone())),
    "aclnnInplaceMuls": scalar(lambda x, s: x.mul_(s)),
    "aclnnInplaceSub": scalar(lambda x, s: x.sub_(x.clone(), alpha=3)),
    "aclnnInplaceSubs": scalar(lambda x, s: x.sub_(s, alpha=2)),
    "aclnnMaximum": binary(torch.maximum),
    "aclnnMinimum": binary(torch.minimum),
    "aclnnMul": binary(torch.mul),
    "aclnnMuls": scalar(torch.mul),
    "aclnnPowScalarTensor": unary(lambda x: torch.pow(2.0, x), FLOATS),
    "aclnnPowTensorScalar": unary(lambda x: torch.pow(x, 2), (torch.float32, *INTS[:2])),
    "aclnnPowTensorTensor": binary(lambda x, y: torch.pow(x, y.abs()), (torch.float32, *INTS[:2])),
    "aclnnRemainderTensorScalar": scalar(torch.remainder, (torch.float32, *INTS)),
    "aclnnRemainderTensorTensor": divided(torch.remainder, (torch.float32, *INTS)),
    "aclnnRsub": binary(lambda x, y: torch.rsub(x, y, alpha=2)),
    "aclnnRsubs": scalar(lambda x, s: torch.rsub(x, s, alpha=2)),
    "aclnnSub": binary(lambda x, y: torch.sub(x, y, alpha=3)),
    "aclnnSubs": scalar(lambda x, s: torch.sub(x, s, alpha=3)),
    # comparison and logic
    "aclnnBitwiseAndScalar": scalar(torch.bitwise_and, INTS),
    "aclnnBitwiseAndTensor": binary(torch.bitwise_and, INTS),
    "aclnnBitwiseOrScalar": scalar(torch.bitwise_or, INTS),
    "aclnnBitwiseOrTensor": binary(torch.bitwise_or, INTS),
    "aclnnBitwiseXorScalar": scalar(torch.bitwise_xor, INTS),
    "aclnnBitwiseXorTensor": binary(torch.bitwise_xor, INTS),
    "aclnnEqScalar": scalar(torch.eq),
    "aclnnEqTensor": binary(torch.eq, ALL),
    "aclnnGeScalar": scalar(torch.ge),
    "aclnnGeTensor": binary(torch.ge),
    "aclnnGtScalar": scalar(torch.gt),
    "aclnnGtTensor": binary(torch.gt),
    "aclnnLeScalar": scalar(torch.le),
    "aclnnLeTensor": binary(torch.le),
    "aclnnLeftShift": binary(lambda x, y: x << (y & 7), INTS[:3]),
    "aclnnLeftShifts": scalar(lambda x, s: x << s, INTS[:3]),
    "aclnnLogicalAnd": binary(torch.logical_and, ALL),
    "aclnnLogicalOr": binary(torch.logical_or, ALL),
    "aclnnLogicalXor": binary(torch.logical_xor, ALL),
    "aclnnLtScalar": scalar(torch.lt),
    "aclnnLtTensor": binary(torch.lt),
    "aclnnNeScalar": scalar(torch.ne),
    "aclnnNeTensor": binary(torch.ne, ALL),
    "aclnnRightShift": scalar(lambda x, s: x >> s, INTS[:3]),
    "aclnnSWhere": where,
    # copies, constants, layout
    "aclnnArange": made(torch.arange, 2, 50, 3),
    "aclnnCast": special(lambda x: torch.ops.npu.npu_dtype_cast(x, torch.int32), lambda x: x.to(torch.int32), "mn"),
    "aclnnCat": several(lambda x, dim: torch.cat(x, dim)),
    "aclnnConstantPadNd": unary(lambda x: F.pad(x.unsqueeze(0), (1, 2), value=3), NUMBERS),
    "aclnnEye": made(torch.eye, 4, 6),
    "aclnnFlip": along(lambda x, dim: torch.flip(x, (dim,)), ALL),
    "aclnnInplaceCopy": binary(lambda x, y: x.copy_(y), ALL),
    "aclnnInplaceFillScalar": scalar(lambda x, s: x.fill_(s)),
    "aclnnInplaceFillTensor": unary(lambda x: x.fill_(torch.ones((), device=x.device) * 7), NUMBERS),
    "aclnnInplaceOne": made(torch.ones, (3, 4)),
    "aclnnInplaceZero": made(torch.zeros, (3, 4)),
    "aclnnLinspace": made(torch.linspace, -1.0, 2.0, 7),
    "aclnnRepeat": unary(lambda x: x.unsqueeze(0).repeat(2, *[3] * x.dim()), ALL),
    "aclnnRoll": along(lambda x, dim: torch.roll(x, 2, dim), ALL),
    "aclnnStack": several(lambda x, dim: torch.stack(x, dim)),
    "aclnnTril": matrices(lambda x: torch.tril(x, 1), "bmn"),
    "aclnnTriu": matrices(lambda x: torch.triu(x, -1), "bmn"),
    # indexing
    "aclnnEmbedding": embedded,
    "aclnnGather": picked(torch.gather, source=False),
    "aclnnIndex": index,
    "aclnnIndexPutImpl": index_put,
    "aclnnIndexSelect": indexed,
    "aclnnInplaceMaskedFillScalar": masked(lambda x, mask: x.masked_fill_(mask, 5)),
    "aclnnInplaceMaskedFillTensor": masked(lambda x, mask: x.masked_fill_(mask, torch.ones((), dtype=x.dtype, device=x.device))),
    "aclnnInplaceScatter": picked(lambda x, dim, index, source: x.scatter_(dim, index, source), source=True),
    "aclnnInplaceScatterValue": picked(lambda x, dim, index: x.scatter_(dim, index, 1), source=False),
    "aclnnMaskedSelect": masked(torch.masked_select),
    "aclnnNonzero": unary(torch.nonzero, ALL),
    "aclnnNonzeroV2": masked(lambda x, mask: x[mask]),
    "aclnnScatter": picked(torch.scatter, source=True),
    "aclnnScatterAdd": picked(torch.scatter_add, source=True),
    "aclnnScatterValue": picked(lambda x, dim, index: torch.scatter(x, dim, index, 1), source=False),
    # order
    "aclnnArgMax": distinct(torch.argmax),
    "aclnnArgMin": distinct(torch.argmin),
    "aclnnSort": distinct(torch.sort, True),
    "aclnnTopk": distinct(lambda x, dim: torch.topk(x, min(3, x.shape[dim]), dim)),
    # reductions
    "aclnnAll": along(torch.all, ALL),
    "aclnnAmax": along(torch.amax, NUMBERS),
    "aclnnAmin": along(torch.amin, NUMBERS, True),
    "aclnnAny": along(torch.any, ALL, True),
    "aclnnCumsum": along(torch.cumsum, NUMBERS),
    "aclnnEqual": unary(lambda x: (torch.equal(x, x.clone()), torch.equal(x, x + 1)), NUMBERS),
    "aclnnMax": along(lambda x, dim: torch.max(x), NUMBERS),
    "aclnnMaxDim": distinct(torch.max),
    "aclnnMean": along(torch.mean),
    "aclnnMin": along(lambda x, dim: torch.min(x), NUMBERS),
    "aclnnMinDim": distinct(torch.min, True),
    "aclnnProd": along(lambda x, dim: torch.prod(x), (torch.float32, torch.int64)),
    "aclnnReduceSum": along(torch.sum, ALL),
    # products
    "aclnnAddmm": matrices(lambda x, y, z: torch.addmm(x, y, z, beta=2, alpha=3), "mn", "mk", "kn"),
    "aclnnBaddbmm": matrices(lambda x, y, z: torch.baddbmm(x, y, z, beta=2, alpha=3), "bmn", "bmk", "bkn"),
    "aclnnBatchMatMul": matrices(torch.bmm, "bmk", "bkn"),
    "aclnnDot": matrices(torch.dot, "k", "k"),
    "aclnnInplaceAddmm": matrices(lambda x, y, z: x.addmm_(y, z, beta=2, alpha=3), "mn", "mk", "kn"),
    "aclnnMatmul": matrices(torch.matmul, "bmk", "kn"),
    "aclnnMm": matrices(torch.mm, "mk", "kn"),
    "aclnnMv": matrices(torch.mv, "mk", "k"),
    # layers
    "aclnnFlashAttentionScore": attention,
    "aclnnLayerNorm": matrices(lambda x, w, b: F.layer_norm(x, w.shape, w, b), "bmn", "n", "n"),
    "aclnnLogSoftmax": along(torch.log_softmax),
    "aclnnRmsNorm": special(
        lambda x, w: torch.ops.npu.npu_rms_norm(x, w, 1e-5)[0], lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), "bmn", "n"
    ),
    "aclnnSoftmax": along(torch.softmax),
    "aclnnSwiGlu": special(lambda x: torch.ops.npu.npu_swiglu(torch.cat((x, x + 1), -1)), lambda x: F.silu(x) * (x + 1), "mn"),
}
"""By name of the operator, as traces and prices have it."""
