"""Tensors drawn at random: shapes, dtypes, strides and values from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class View(NamedTuple):
    """A tensor as a view of a base, so that a copy on another device has the same strides and offset."""

    base: Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on(self, device: str) -> tuple[Tensor, Tensor]:
        """A copy of the base there, and the view of it."""
        base = self.base.to(device, copy=True)
        return base, base.as_strided(self.size, self.stride, self.offset)


class Draw:
    """Tensors from a seed: of up to three dimensions, one in ten empty, half of them not contiguous."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def shape(self, dims: int | None = None, least: int = 0) -> tuple[int, ...]:
        dims = self.random.randint(0, 3) if dims is None else dims
        return tuple(max(least, 0 if self.random.random() < 0.05 else self.random.randint(1, 5)) for _ in range(dims))

    def dtype(self, dtypes: Sequence[torch.dtype]) -> torch.dtype:
        return self.random.choice(dtypes)

    def values(self, count: int, dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point:
            return (torch.randn(count, generator=self.generator) * 3).to(dtype)
        low, high = (0, 2) if dtype == torch.bool else (0 if dtype == torch.uint8 else -9, 10)
        return torch.randint(low, high, (count,), generator=self.generator).to(dtype)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, values: Tensor | None = None, strided: bool = True) -> View:
        """Elements drawn, or `values`. `strided` may leave gaps, an offset and another order of dimensions."""
        size, count = tuple(shape), 1
        for n in size:
            count *= n
        step = self.random.choice((1, 1, 2)) if strided else 1
        order = list(range(len(size)))
        if strided and self.random.random() < 0.5:
            self.random.shuffle(order)
        stride, reach = [0] * len(size), step
        for dim in reversed(order):
            stride[dim], reach = reach, reach * max(size[dim], 1)
        offset = self.random.choice((0, 3)) if strided else 0
        base = self.values(reach + offset, dtype)
        if values is not None and count:
            base.as_strided(size, stride, offset).copy_(values.reshape(size))
        return View(base, size, tuple(stride), offset)

    def any(self, dtypes: Sequence[torch.dtype], dims: int | None = None, least: int = 0) -> View:
        return self.tensor(self.shape(dims, least), self.dtype(dtypes))

    def pair(self, dtypes: Sequence[torch.dtype]) -> tuple[View, View]:
        """Two of one dtype that broadcast against each other."""
        shape, dtype = self.shape(), self.dtype(dtypes)
        other = tuple(1 if self.random.random() < 0.2 else n for n in shape)[self.random.randint(0, len(shape)) :]
        return self.tensor(shape, dtype), self.tensor(other, dtype)

    def scalar(self, view: View) -> float:
        value = self.random.randint(1, 4)
        return value + 0.5 if view.base.dtype.is_floating_point else value

    def dim(self, view: View) -> int:
        return self.random.randrange(-len(view.size), len(view.size))

    def indices(self, shape: Sequence[int], below: int) -> View:
        count = torch.Size(shape).numel()
        return self.tensor(shape, torch.int64, torch.randint(0, max(below, 1), (count,), generator=self.generator))
