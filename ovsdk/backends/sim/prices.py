"""Prices: what host stages and launches cost in virtual time, and on what. A price file (TOML, schema 1) or a mapping like it.

    schema = 1
    name   = "mine"
    source = "where the figures come from"          # also in each section and operator, for its own figures
    [machine]                                       # all optional: what is left out costs nothing and never binds
    cores  = 8                                      # of the host; left out: one for each thread
    gil    = { switch_us = 5000, handoff_us = 8 }   # left out: no GIL. Also overshoot_us, and share = { prepare = 0.3 }: see `host.Share`
    queue  = { level = 1, task = 4096, device = 1024 }  # torch_npu's TASK_QUEUE_ENABLE; rows that its queue, and a stream's, hold.
                                                    # left out: no task queue, level 0
    h2d    = { latency_us = 8,  gb_per_s = 20 }     # copy engines. pinned = false: pageable memory, the lane waits for
    d2h    = { latency_us = 30, gb_per_s = 20 }     # the stream and copies itself
    launch_latency_us = 10                          # from the launcher's end to the earliest begin on the device
    aicpu_workers = 4
    streams = "beside"                              # or "shared": n kernels at once on n streams run at 1/n of their speed
    [stage]                                         # host time without what its operators cost; unlisted: no price
    plan_us = 12000                                 # also prepare_us, launch_us, amend_us, retire_us
    ask_us  = 0                                     # a plan that gave no batch; 0 if left out
    [launch.decode]                                 # Launch.kind
    features     = { batch = 8 }                    # defaults; a Launch overrides, and a Batch for its stages
    ops          = ["embed", { repeat = 28, ops = ["attention", "moe"] }, "sample"]     # or device_us = 45000: one operator
    inputs_bytes = 4096                             # copied to the device before the first operator; left out: no copy
    result_bytes = 64                               # copied back after the last; the copy has its latency even for 0 bytes
    [launch.decode.graph]                           # its replay: one enqueue, all kernels; see `lower`
    host_us = 120                                   # also tiling_us, launcher_us
    update  = ["attention"]                         # operators whose task is updated before each replay
    update_us = 180                                 # each, on the lane, and its tiling_us
    [op.default]                                    # what an operator does not say itself
    host_us = 60                                    # enqueue, on the launching lane
    tiling_us = 0                                   # its tiling, computed on the host
    launcher_us = 40                                # on the task queue's thread
    [op.attention]
    device_us = { by = "kv_tokens", at = [[8192, 400], [32768, 640]] }
    aicpu_us  = 0                                   # on the device's AICPU, before it begins
    stream    = "side"                              # left out: the stream that the launch was submitted to
    waits     = ["embed"]                           # of each the latest before this one, on another stream
    [op.reduce_sum]
    device_us   = 80
    value_bytes = 32                                # what a host-value tiling copies to the host
    tiling      = "host-shape"                      # the placement, unless another is chosen
    [op.reduce_sum.placement]                       # what each adds; only those listed may be chosen
    host-shape      = { tiling_us = 0 }
    host-value      = { tiling_us = 40 }
    in-kernel       = { device_us = 2 }
    device-metadata = { op = { host_us = 60, launcher_us = 40, device_us = 6 } }
    aicpu           = { aicpu_us = 25 }
    [calibration]                                   # optional, of the profile that the figures were read from; errors are shares
    trace_sha256 = "..."
    self_replay = 0.01                              # also held_out, paired

How one price is written: see `price`. How a launch becomes rows: see `lower`.
"""

from __future__ import annotations

import importlib.resources
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ...errors import CostUnknown, ProfileError, guess, refuse
from .hardware import STAGES, Copy, Hardware, read_hardware
from .host import HostModel
from .operators import HOST_VALUE, OWN, LaunchPrice, Op, read_launch, read_ops, streams_of
from .price import Affine, Features, Kept, Price, read_price
from .reading import Entry, listed
from .rows import Machine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1


@attrs.frozen
class Calibration:
    """How good figures are that were read from a profile. Errors are shares: of a replay of the profile itself, of the part
    that was held out, of a pair of runs without and with overlap. None: not known."""

    trace_sha256: str | None = None
    self_replay: float | None = None
    held_out: float | None = None
    paired: float | None = None


@attrs.frozen
class Prices:
    """A price file. `stages` by name, `launches` by `Launch.kind`, `ops` by name."""

    name: str
    source: str
    stages: Mapping[str, Price]
    launches: Mapping[str, LaunchPrice]
    ops: Mapping[str, Op] = attrs.field(factory=dict)
    hardware: Hardware = attrs.field(factory=Hardware)
    streams: tuple[str, ...] = (OWN,)
    """Names by `Row.stream`."""
    calibration: Calibration = attrs.field(factory=Calibration)
    sources: Mapping[str, str] = attrs.field(factory=dict)
    """Key path of a section -> where its figures come from, if it says so itself."""

    @property
    def machine(self) -> Machine:
        """What rows run on."""
        return self.hardware.rows._replace(streams=len(self.streams))

    @property
    def host(self) -> HostModel:
        """What lanes run on."""
        return self.hardware.host

    def stage(self, stage: str) -> Price:
        """The price of a stage. Raises CostUnknown."""
        price = self.stages.get(stage)
        if price is None:
            raise CostUnknown(f"no price for stage {stage!r}: add {stage}_us to [stage]; priced: {listed(self.stages)}")
        return price

    def launch(self, kind: str) -> LaunchPrice:
        """The price of a launch kind. Raises CostUnknown."""
        launch = self.launches.get(kind)
        if launch is None:
            raise CostUnknown(f"no price for launch kind {kind!r}{guess(kind, self.launches)}; priced: {listed(self.launches)}")
        return launch

    @property
    def features(self) -> Features:
        """Features that every launch kind has the same default for; a batch that says nothing else has those."""
        kinds = [launch.features for launch in self.launches.values()]
        return {name: value for kind in kinds[:1] for name, value in kind.items() if all(k.get(name) == value for k in kinds)}

    def stage_ns(self, stage: str, features: Features, seed: int = 0, step: int = 0) -> int:
        """Host time of a stage in ns. Raises CostUnknown if there is no price or no such feature."""
        return Kept(self.stage(stage), seed, self.features).ns(features, step)


def load_prices(source: str | Path | Mapping[str, Any] | Prices | None) -> Prices:
    """Prices from the name of a shipped profile, the path of a .toml file, or a mapping with the structure of one.

    Raises ConfigError for an unknown name; ProfileError for a file that cannot be read or breaks the grammar.
    """
    if isinstance(source, Prices):
        return source
    if isinstance(source, Mapping):
        return _prices(Entry(source, "prices"))
    if isinstance(source, Path) or (isinstance(source, str) and source.endswith(".toml")):
        return _read(Path(source))
    if source not in shipped():
        refuse("price profile (also allowed: the path of a .toml file, a mapping)", source, shipped())
    return _parse((_profiles() / f"{source}.toml").read_bytes(), f"{source}.toml")


def shipped() -> tuple[str, ...]:
    """The names of the profiles in the package."""
    return tuple(sorted(entry.name[: -len(".toml")] for entry in _profiles().iterdir() if entry.name.endswith(".toml")))


def _profiles() -> Any:
    return importlib.resources.files("ovsdk") / "profiles"


# ---- the structure of a file ----


def _read(path: Path) -> Prices:
    try:
        return _parse(path.read_bytes(), path.name)
    except OSError as error:
        raise ProfileError(f"price file {str(path)!r} cannot be read: {error.strerror}") from error


def _parse(toml: bytes, file: str) -> Prices:
    try:
        table = tomllib.loads(toml.decode())
    except ValueError as error:  # of the encoding or of the syntax
        raise ProfileError(f"price file {file!r} is not TOML: {error}") from error
    return _prices(Entry(table, file))


def _prices(entry: Entry) -> Prices:
    sections = ("schema", "name", "source", "machine", "stage", "launch", "op", "calibration")
    keys = entry.table(sections, needed=("schema",))
    if type(keys["schema"].value) is not int or keys["schema"].value != SCHEMA:
        keys["schema"].wrong(f"{SCHEMA}, the one that this version reads")
    hardware = read_hardware(keys.get("machine", entry.at("machine", {})))
    ops = read_ops(keys.get("op", entry.at("op", {})))
    launches = {kind: read_launch(kind, one, ops) for kind, one in keys.get("launch", entry.at("launch", {})).table().items()}
    _refuse_no_engine(entry, hardware, ops, launches)
    return Prices(
        name=keys["name"].text() if "name" in keys else entry.file.removesuffix(".toml"),
        source=keys["source"].text() if "source" in keys else "",
        stages=_stages(keys.get("stage", entry.at("stage", {}))),
        launches=launches,
        ops=ops,
        hardware=hardware,
        streams=streams_of(launches.values()),
        calibration=_calibration(keys["calibration"]) if "calibration" in keys else Calibration(),
        sources=_sources(keys),
    )


def _stages(entry: Entry) -> dict[str, Price]:
    keys = entry.table((*[f"{name}_us" for name in STAGES], "source"))
    prices = {key.removesuffix("_us"): read_price(price) for key, price in keys.items() if key != "source"}
    return {"ask": Affine("stage.ask_us", 0.0), **prices}


def _refuse_no_engine(entry: Entry, hardware: Hardware, ops: Mapping[str, Op], launches: Mapping[str, LaunchPrice]) -> None:
    """What copies needs the engine's price."""
    copies: list[tuple[str, Copy | None, str]] = []
    copies += [(f"launch.{kind}.inputs_bytes", hardware.h2d, "h2d") for kind, one in launches.items() if one.inputs_bytes]
    copies += [(one.result_bytes.where, hardware.d2h, "d2h") for one in launches.values() if one.result_bytes.where]
    copies += [(f"op.{name}.placement.{HOST_VALUE}", hardware.d2h, "d2h") for name, op in ops.items() if HOST_VALUE in op.placements]
    for path, engine, name in copies:
        if engine is None:
            raise ProfileError(f"{entry.file}: {path} is a copy: add {name} = {{ latency_us = ..., gb_per_s = ... }} to [machine]")


def _calibration(entry: Entry) -> Calibration:
    errors = ("self_replay", "held_out", "paired")
    keys = entry.table((*errors, "trace_sha256", "source"))
    digest = keys["trace_sha256"].text() if "trace_sha256" in keys else None
    if digest is not None and re.fullmatch("[0-9a-f]{64}", digest) is None:
        keys["trace_sha256"].wrong("the SHA-256 of a file, 64 hexadecimal digits in lower case")
    return Calibration(digest, *(keys[name].number() if name in keys else None for name in errors))


def _sources(keys: Mapping[str, Entry]) -> dict[str, str]:
    """Section -> where its figures come from."""
    listed_in = [keys[key] for key in ("launch", "op") if key in keys]
    sections = [keys[key] for key in ("machine", "stage", "calibration") if key in keys]
    sections += [section for group in listed_in for section in group.table().values()]
    sections += [section.table()["graph"] for section in sections if "graph" in section.value]
    return {section.path: section.table()["source"].text() for section in sections if "source" in section.value}
