"""The `cpu` backend: a device that is a child process. Data, order, what is sent, errors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk.backends._cpu_device import public_names
from ovsdk.backends._link import RemoteTraceback
from ovsdk.backends._wire import LARGE
from ovsdk.backends.cpu import CpuBackend
from ovsdk.errors import ConfigError, DeviceError, DeviceMemoryExhausted
from ovsdk.types import Launch, Method, Resident

from .desk import Desk, call, env, open_pipe, same, trees

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the device need not import this file


@pytest.fixture(scope="module")
def device() -> Iterator[CpuBackend]:
    with CpuBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def desk(device: CpuBackend) -> Resident:
    return device.load(Desk)


@pytest.fixture
def fresh() -> Iterator[CpuBackend]:
    with CpuBackend() as backend:
        yield backend


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """The name of a pipe that `Desk.wait_for` waits for."""
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


# ---- data ----


@settings(max_examples=60)
@given(args=st.lists(trees, max_size=3).map(tuple), host=st.dictionaries(st.sampled_from("abc"), trees))
def test_any_tree_of_arrays_comes_back_as_it_went(device: CpuBackend, desk: Resident, args: tuple[Any, ...], host: dict[str, Any]) -> None:
    assert same(call(device, desk.echo, *args, **host), (args, host))


def test_mapping_inputs_are_keywords_beside_host(device: CpuBackend, desk: Resident) -> None:
    launch = Launch("call", fn=desk.echo, inputs={"x": np.arange(3)}, host={"y": 4})
    assert same(device.stream().submit(launch).result(), ((), {"x": np.arange(3), "y": 4}))


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def spoil() -> None:
    raise ZeroDivisionError("spoilt on the way")


class Arrives:
    """Arrives as what `how` gives where it is unpickled."""

    def __init__(self, how: Any) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return self.how, ()


def test_only_inputs_of_methods_are_unpickled_beside_a_launch(device: CpuBackend, desk: Resident) -> None:
    """What comes with a function may import modules, and some of those want to be imported in the main thread."""
    assert call(device, desk.echo, Arrives(in_main_thread)) == ((False,), {})
    assert call(device, lambda given: given, Arrives(in_main_thread)) is True


def test_inputs_that_cannot_be_unpickled_fail_their_own_launch_alone(fresh: CpuBackend) -> None:
    desk, stream = fresh.load(Desk), fresh.stream()
    inputs = [(desk.note, 5), (desk.note, Arrives(spoil)), (desk.note, 6)]
    before, spoilt, after = [stream.submit(Launch("note", fn=fn, inputs=(given,))) for fn, given in inputs]
    with pytest.raises(ZeroDivisionError, match="spoilt on the way"):
        spoilt.result()
    assert (before.result(), after.result()) == (0, 1)


@pytest.mark.parametrize("size", [10, LARGE * 4])
def test_both_sides_own_what_they_hold(fresh: CpuBackend, size: int) -> None:
    desk, mine = fresh.load(Desk), np.zeros(size, np.uint8)
    kept = fresh.stream().submit(Launch("keep", fn=desk.keep, inputs=mine))
    scribbled = fresh.stream().submit(Launch("scribble", fn=desk.scribble, inputs=mine))
    mine[...] = 7  # both launches were submitted with zeros
    first = scribbled.result()
    assert kept.result() is None
    assert first.flags.writeable
    assert (first == 255).all()
    for _ in range(3):  # more traffic through the same memory
        call(fresh, desk.echo, np.full(size, 9, np.uint8))
    assert (call(fresh, desk.kept_ones)[0] == 0).all()
    assert (first == 255).all()
    assert (mine == 7).all()


def test_read_only_stays_read_only(device: CpuBackend, desk: Resident) -> None:
    array = np.arange(LARGE)
    array.flags.writeable = False
    assert not call(device, desk.echo, array)[0][0].flags.writeable


def test_a_result_is_the_same_object_each_time(device: CpuBackend, desk: Resident) -> None:
    future = device.stream().submit(Launch("echo", fn=desk.echo, inputs=np.arange(3)))
    assert future.result() is future.result()


def test_torch_tensors_of_every_kind(device: CpuBackend, desk: Resident) -> None:
    torch = pytest.importorskip("torch")
    dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64)
    sent = {str(dtype): torch.ones(300, 200).to(dtype) for dtype in dtypes}
    sent |= {
        "small": torch.arange(6.0).reshape(2, 3).bfloat16(),
        "strided": torch.arange(90_000.0).reshape(300, 300).t()[::2],
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "learned": torch.ones(2, requires_grad=True),
        "history": torch.ones(2, requires_grad=True) * 2,
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "sparse": torch.eye(3).to_sparse(),
        "list": [torch.ones(2), (torch.zeros(1),)],
    }
    (_, came) = call(device, desk.echo, **{name.replace(".", "_"): value for name, value in sent.items()})
    for name, value in sent.items():
        back = came[name.replace(".", "_")]
        if isinstance(value, list):
            assert back[1][0].equal(value[1][0])
            continue
        assert (type(back), back.dtype, back.shape, back.requires_grad) == (type(value), value.dtype, value.shape, value.requires_grad), (
            name
        )
        assert back.to_dense().equal(value.to_dense()), name
    came["small"].fill_(0)  # its memory is its own


def test_the_same_tensor_twice_arrives_as_one(device: CpuBackend, desk: Resident) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(3)
    (first, second), _ = call(device, desk.echo, tensor, tensor)
    assert first is second


# ---- order and asynchrony ----


@settings(max_examples=20)
@given(sizes=st.lists(st.sampled_from([0, 1, LARGE, 3 * LARGE]), min_size=1, max_size=12), read=st.randoms(use_true_random=False))
def test_launches_run_in_order_whatever_their_size_and_whoever_asks(
    device: CpuBackend, desk: Resident, sizes: list[int], read: Any
) -> None:
    stream = device.stream()
    before = call(device, desk.note, -1)
    futures = [
        device.stream(name).submit(Launch("size", fn=lambda array, n: (n, array.nbytes), inputs=np.zeros(size, np.uint8), host={"n": n}))
        if n % 2
        else stream.submit(Launch("note", fn=desk.note, inputs=(n,)))
        for n, (size, name) in enumerate(zip(sizes, ["a", "b"] * 6, strict=False))
    ]
    results: dict[int, Any] = {}
    for n in read.sample(range(len(sizes)), len(sizes)):
        results[n] = futures[n].result()
    assert results == {n: (n, sizes[n]) if n % 2 else before + 1 + n // 2 for n in range(len(sizes))}
    stamps = [stamp for future in futures for stamp in future.span_ns or ()]
    assert stamps == sorted(stamps)


def test_submit_never_waits_for_the_device(fresh: CpuBackend, pipe: str) -> None:
    """While a launch blocks, thousands of others go, whole megabytes among them and a pickle that no socket would hold."""
    desk, stream = fresh.load(Desk), fresh.stream()
    blocked = stream.submit(Launch("block", fn=desk.wait_for, inputs=(pipe,)))
    many = [stream.submit(Launch("small", fn=desk.echo, host={"n": n})) for n in range(3000)]
    big = [stream.submit(Launch("big", fn=desk.echo, inputs=np.full(1 << 20, n, np.uint8))) for n in range(20)]
    host = stream.submit(Launch("host", fn=desk.echo, host={"text": "x" * (8 << 20)}))
    assert not any(future.done() for future in (blocked, *many, *big, host))
    open_pipe(pipe)
    assert blocked.result() == "go"
    assert [future.result()[1]["n"] for future in many] == list(range(3000))
    assert [int(future.result()[0][0].mean()) for future in big] == list(range(20))
    assert len(host.result()[1]["text"]) == 8 << 20


def test_answers_that_nobody_reads_do_not_stop_the_device(fresh: CpuBackend) -> None:
    """The device keeps what the socket does not take; the last launch leaves a mark outside it."""
    stream = fresh.stream()
    ours, theirs = os.pipe()
    stream.submit(Launch("mark", fn=_connect, inputs=(os.getpid(), theirs))).result()
    futures = [stream.submit(Launch("text", fn=lambda: "x" * 20_000)) for _ in range(200)]
    stream.submit(Launch("mark", fn=_mark))
    assert os.read(ours, 1) == b"!"  # all have run, and nothing was read since the first answer
    assert sum(len(future.result()) for future in futures) == 4_000_000
    for fd in (ours, theirs):
        os.close(fd)


def _connect(pid: int, fd: int) -> None:
    sys.modules["the_mark"] = open(f"/proc/{pid}/fd/{fd}", "wb", 0)  # type: ignore[assignment]


def _mark() -> None:
    sys.modules["the_mark"].write(b"!")  # type: ignore[attr-defined]


def test_done_before_the_end_is_no_and_after_a_wait_is_yes(fresh: CpuBackend, pipe: str) -> None:
    desk = fresh.load(Desk)
    future = fresh.stream().submit(Launch("block", fn=desk.wait_for, inputs=(pipe,)))
    assert (future.done(), future.error, future.span_ns) == (False, None, None)
    open_pipe(pipe)
    now = fresh.clock.wait((future,), None, None)
    assert future.settled
    assert future.done()
    begin, end = future.span_ns
    assert begin <= end <= now


# ---- what is sent ----


def test_functions_travel_by_value_and_keep_nothing(device: CpuBackend) -> None:
    offset = 5
    assert call(device, lambda x: x + offset, 1) == 6
    calls: list[int] = []

    def count() -> int:
        calls.append(1)
        return len(calls)

    assert [call(device, count), call(device, count), calls] == [1, 1, []]


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from ovsdk.backends.cpu import CpuBackend
        from ovsdk.types import Launch

        class Point:
            def __init__(self, x): self.x = x

        class Model:
            def __init__(self, device): self.device = device
            def double(self, point): return Point(2 * point.x)

        class Oops(Exception): pass

        def fail(): raise Oops("no")

        with CpuBackend() as cpu:
            model = cpu.load(Model)
            point = cpu.stream().submit(Launch("double", fn=model.double, inputs=Point(21))).result()
            assert type(point) is Point, type(point)
            try:
                cpu.stream().submit(Launch("fail", fn=fail)).result()
            except Oops:
                print(point.x)
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=Path(__file__).parents[1], env=env())
    assert (done.stdout, done.stderr) == ("42\n", "")


@pytest.mark.parametrize(
    ("launch", "part"),
    [
        (lambda lock: Launch("step", fn=lambda: lock), "fn"),
        (lambda lock: Launch("step", fn=print, inputs=(1, lock)), "inputs[1]"),
        (lambda lock: Launch("step", fn=print, inputs={"x": [lock]}), "inputs['x']"),
        (lambda lock: Launch("step", fn=print, host={"a": 1, "b": lock}), "host['b']"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name_and_nothing_is_sent(device: CpuBackend, launch: Any, part: str) -> None:
    with pytest.raises(ConfigError, match="load") as caught:
        device.stream().submit(launch(threading.Lock()))
    assert f"launch 'step': {part} cannot be sent" in str(caught.value)
    assert "lock" in str(caught.value)
    assert call(device, len, "abc") == 3


def test_a_stub_and_features_are_never_sent(device: CpuBackend) -> None:
    lock = threading.Lock()
    launch = Launch("step", fn=len, inputs=("abc",), stub=lock.acquire, features={"batch": 1.0}, graph=lock)
    assert device.stream().submit(launch).result() == 3


@pytest.mark.parametrize("fn", ["forward", None, 3])
def test_an_fn_that_is_not_callable_is_refused(device: CpuBackend, fn: Any) -> None:
    with pytest.raises(ConfigError, match=r"launch 'step': fn is .*" + repr(fn)):
        device.stream().submit(Launch("step", fn=fn))


# ---- residents ----


def test_load_gives_a_handle_that_knows_its_methods(device: CpuBackend, desk: Resident) -> None:
    assert call(device, lambda: 1) == 1
    with pytest.raises(AttributeError, match=r"no method 'ecko'; it has: .*echo"):
        _ = desk.ecko
    with pytest.raises(AttributeError, match="flavour"):
        _ = desk.flavour  # a value, not a method


def test_public_names() -> None:
    class Proxy:
        def __getattr__(self, name: str) -> Any:
            return len

    class Listed(Proxy):
        def __dir__(self) -> list[str]:
            return ["forward", "_hidden"]

    class Plain:
        number = 3

        def __init__(self) -> None:
            self.compiled, self.weights = len, [1]

        @property
        def costly(self) -> Any:
            raise AssertionError("a property is not run to find out")

        def run(self) -> None: ...

    assert public_names(Proxy()) is None
    assert public_names(Listed()) == ["forward"]
    assert public_names(Plain()) == ["compiled", "costly", "run"]


def test_load_raises_what_build_raises(device: CpuBackend) -> None:
    def build(where: str) -> Any:
        raise FileNotFoundError(f"no weights for {where}")

    with pytest.raises(FileNotFoundError, match="no weights for cpu") as caught:
        device.load(build)
    assert "in build" in str(caught.value.__cause__)
    assert call(device, len, "abc") == 3


def test_a_build_that_cannot_be_sent_is_refused(device: CpuBackend) -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"load: .* cannot be sent to the device process: .*lock"):
        device.load(lambda _: lock)


def test_a_resident_of_another_backend_is_refused(fresh: CpuBackend, desk: Resident) -> None:
    with pytest.raises(ConfigError, match=r"launch 'step': .*this backend did not load"):
        fresh.stream().submit(Launch("step", fn=desk.echo))
    with pytest.raises(ConfigError, match="did not load"):
        fresh.stream().submit(Launch("step", fn=Method(0, "echo")))


# ---- errors ----


class Stubborn(Exception):
    """Pickles, but does not come back: its __init__ wants two arguments."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Mute(Exception):
    """Has no text, and cannot be pickled."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


def _raise(error: BaseException) -> None:
    raise error


def fail(backend: CpuBackend, fn: Callable[..., Any], *inputs: Any) -> BaseException:
    """The error of a launch, after seeing that it is the same each time and that the device goes on."""
    future = backend.stream().submit(Launch("bad", fn=fn, inputs=inputs))
    with pytest.raises(BaseException) as first:  # noqa: PT011
        future.result()
    with pytest.raises(type(first.value)) as second:
        future.result()
    assert first.value is second.value is future.error
    assert future.span_ns is not None
    assert call(backend, len, "abc") == 3
    return first.value


def test_an_exception_comes_back_with_its_traceback(device: CpuBackend) -> None:
    def inner() -> None:
        _ = {}["absent"]

    error = fail(device, inner)
    assert type(error) is KeyError
    assert error.args == ("absent",)
    assert type(error.__cause__) is RemoteTraceback
    assert "in inner" in str(error.__cause__)
    assert "answer" not in str(error.__cause__)


@pytest.mark.parametrize(
    ("fn", "inputs", "says"),
    [
        (lambda: _raise(Stubborn(3, "no")), (), "launch 'bad' raised .*Stubborn: 3: no, which cannot be unpickled here"),
        (lambda: _raise(ValueError(threading.Lock())), (), r"launch 'bad' raised ValueError: .*, which cannot be sent to the host"),
        (lambda: _raise(Mute()), (), "Mute: .its text cannot be had: RuntimeError., which cannot be sent to the host: no pickle"),
        (threading.Lock, (), "launch 'bad' returned _thread.lock, which cannot be sent to the host"),
        (sys.exit, (3,), r"launch 'bad' raised SystemExit\(3\)"),
        (lambda: _raise(KeyboardInterrupt()), (), r"launch 'bad' raised KeyboardInterrupt\(\)"),
        (lambda: _raise(MemoryError("16 GiB")), (), "launch 'bad' found no memory on the device: 16 GiB"),
    ],
)
def test_what_cannot_be_raised_here_is_a_device_error(device: CpuBackend, fn: Any, inputs: tuple[Any, ...], says: str) -> None:
    error = fail(device, fn, *inputs)
    assert isinstance(error, DeviceMemoryExhausted if "memory" in says else DeviceError)
    with pytest.raises(DeviceError, match=says):
        raise error
    assert "Traceback" in str(error.__cause__) or "Traceback" in str(error.__cause__.__cause__)


def test_torch_out_of_memory_is_memory_exhausted(device: CpuBackend) -> None:
    torch = pytest.importorskip("torch")
    error = fail(device, lambda: torch.empty(1 << 60, dtype=torch.uint8))
    assert isinstance(error, DeviceMemoryExhausted)
    assert isinstance(error, MemoryError)


def test_a_method_that_is_not_there_fails_its_launch_alone(device: CpuBackend, desk: Resident) -> None:
    error = fail(device, Method(desk.echo.resident, "ecko"))
    assert isinstance(error, AttributeError)


def test_results_and_errors_of_a_class_that_cannot_be_unpickled_here(device: CpuBackend) -> None:
    """A module that only the device has."""

    def make() -> Any:
        module = type(sys)("only_there")
        exec("class Thing: pass\nclass Oops(Exception): pass", module.__dict__)
        sys.modules["only_there"] = module
        return module

    assert "'bad' gave a result that cannot be unpickled here" in str(fail(device, lambda: make().Thing()))
    assert "Oops: why" in str(fail(device, lambda: _raise(make().Oops("why"))))
