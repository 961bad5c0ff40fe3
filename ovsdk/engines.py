"""Where many independent tasks run: in this process, on all its cores, or on a Ray or Dask cluster; through joblib.

An engine is a joblib backend and how to get one. Results come as they finish, but where joblib cannot give them so (Ray):
there they come a round of tasks at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from .errors import ConfigError, refuse
from .optional import need

T = TypeVar("T")
R = TypeVar("R")
Say = Callable[[str], None]
"""Is told, a line at a time, what a reader should know."""
Opened = contextlib.AbstractContextManager[Any]

FEW = 16
"""Tasks that a worker process should have at least, if nobody says how many processes: to start one takes as long."""
INSTALL = "pip install 'ovsdk[sweep]'"
ROUND = 4
"""Tasks for each worker in a round. A sweep that is killed loses a round at most."""


class Engine(NamedTuple):
    """`backend` is joblib's name for it; `open` gives a context in which it can be used at an address ('': a local one)."""

    backend: str
    open: Callable[[str], Opened]
    streams: bool
    """Whether joblib gives its results as they finish."""


@contextlib.contextmanager
def _loky(address: str) -> Iterator[None]:
    if address:
        raise ConfigError(f"the engine 'local' has no address; got {address!r}. Choose the cluster's kind: --engine ray or dask")
    try:
        yield
    finally:
        need("joblib.externals.loky", "the engine 'local'", INSTALL).get_reusable_executor().shutdown(wait=True)


@contextlib.contextmanager
def _ray(address: str) -> Iterator[None]:
    ray = need("ray", "the engine 'ray'", "pip install ray")
    need("ray.util.joblib", "the engine 'ray'", "pip install ray").register_ray()
    ray.init(**({"address": address} if address else {}), log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _dask(address: str) -> Opened:
    distributed = need("dask.distributed", "the engine 'dask'", "pip install 'dask[distributed]'")
    client: Opened = distributed.Client(*filter(None, [address]))
    return client


ENGINES = {"local": Engine("loky", _loky, True), "ray": Engine("ray", _ray, False), "dask": Engine("dask", _dask, True)}


def run_on(
    engine: str, function: Callable[[T], R], tasks: Sequence[T], jobs: int | None = None, address: str = "", say: Say = print
) -> Iterator[R]:
    """Give `function` of each task, as they finish. Both are sent to other processes where there are several.

    jobs: processes; None: all that there are, but on the local engine none for few tasks. Without joblib the local
    engine runs them one after the other, and `say` is told so; any other raises ConfigError, as does an unknown engine.
    """
    if engine not in ENGINES:
        refuse("engine", engine, ENGINES)
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs is how many processes, at least 1; got {jobs!r}")
    workers = min(os.cpu_count() or 1, len(tasks) // FEW) if jobs is None else jobs
    if engine == "local" and (workers <= 1 or not _joblib_is_here(say)):
        return map(function, tasks)
    return _spread(ENGINES[engine], function, tasks, workers if engine == "local" else jobs or -1, address) if tasks else iter(())


def _joblib_is_here(say: Say) -> bool:
    try:
        import_module("joblib")
    except ImportError:
        say(f"joblib is not installed: the points run one after the other. For all cores: {INSTALL}")
        return False
    return True


@contextlib.contextmanager
def _opened(engine: Engine, address: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(engine.open(address))
        except ConfigError:
            raise
        except Exception as error:  # of whichever library it is
            where = f"no cluster answered at {address!r}; start one there, or leave the address out" if address else "it did not start"
            raise ConfigError(f"the engine {engine.backend!r} cannot be used: {where} ({type(error).__name__}: {error})") from error
        yield


def _spread(engine: Engine, function: Callable[[T], R], tasks: Sequence[T], jobs: int, address: str) -> Iterator[R]:
    joblib = need("joblib", "more than one process", INSTALL)
    return_as = "generator_unordered" if engine.streams else "list"
    with (
        _opened(engine, address),
        joblib.parallel_config(backend=engine.backend, n_jobs=jobs),
        joblib.Parallel(return_as=return_as) as parallel,
    ):
        size = len(tasks) if engine.streams else ROUND * joblib.effective_n_jobs()
        for begin in range(0, len(tasks), size):
            yield from parallel(map(joblib.delayed(function), tasks[begin : begin + size]))
