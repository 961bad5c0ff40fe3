"""What the tests of the `cpu` backend load and send: a desk on the device, and trees of arrays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ovsdk.backends._wire import LARGE
from ovsdk.backends.cpu import CpuBackend
from ovsdk.types import Launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the device need not import this file


class Desk:
    """What the tests load: keeps and returns what it is given."""

    flavour = "plain"

    def __init__(self, device: str) -> None:
        self.device, self.kept, self.log = device, [], []

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return (args, kwargs)

    def keep(self, array: Any) -> None:
        self.kept.append(array)

    def scribble(self, array: Any) -> Any:
        array[...] = 255
        return array

    def kept_ones(self) -> list[Any]:
        return self.kept

    def note(self, number: int) -> int:
        self.log.append(number)
        return len(self.log) - 1

    def wait_for(self, path: str) -> str:
        """Blocks until somebody opens the pipe and closes it: what it wrote."""
        with open(path) as pipe:
            return pipe.read()


def open_pipe(path: str, text: str = "go") -> None:
    with open(path, "w") as pipe:
        pipe.write(text)


def call(backend: CpuBackend, fn: Callable[..., Any], *inputs: Any, **host: Any) -> Any:
    return backend.stream().submit(Launch("call", fn=fn, inputs=inputs, host=host)).result()


def same(a: Any, b: Any) -> bool:
    """Equal in value, type, dtype and shape, through tuples, lists and dicts."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and (a == b or a != a)


arrays = hnp.arrays(
    st.one_of(
        hnp.integer_dtypes(endianness="="),
        hnp.floating_dtypes(endianness="="),
        hnp.boolean_dtypes(),
        hnp.complex_number_dtypes(endianness="="),
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
strided = arrays.map(np.transpose) | arrays.map(lambda a: a[::-1] if a.ndim else a)
large = st.integers(-64, 64).map(lambda n: np.arange(LARGE + n, dtype=np.uint8)) | st.just(np.arange(40_000).reshape(200, 200)[:, ::2])
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(0, 2).map(lambda n: b"x" * (n * LARGE))
trees = st.recursive(
    plain | arrays | strided | large,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
