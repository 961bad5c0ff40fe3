"""The slot scheduler, with a model whose every token is a hash of all that its slot was fed: any row that is dropped, repeated,
misplaced or fed a stale token changes every token after it.

The oracle is a request alone: one loop over the hash, no scheduler. No torch.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ovsdk
from ovsdk.errors import ConfigError, SchedulerProtocolError
from ovsdk.models.causal_lm import CausalLM, noise_key, prefix_bucket
from ovsdk.models.slots import OUTPUTS, Batch, Output, Request, SlotScheduler
from ovsdk.models.text import Transcript
from ovsdk.types import CLOSED, IDLE, Ask, Launch, bind

VOCAB, EOS = 12, 0
SLOTS, MAX_LEN = 3, 80
DEPTHS = (1, 2, 3, 4)
Script = Mapping[int, tuple[tuple[Request, ...], tuple[Any, ...]]]
"""Arrivals and aborts by number of the ask."""


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(96 + i) for i in ids if i != EOS)


def hashed(fed: Sequence[int], noise: tuple[int, int] | None) -> int:
    return hashlib.blake2b(repr((list(fed), noise)).encode()).digest()[0] % VOCAB


def alone(request: Request) -> tuple[tuple[int, ...], str, str]:
    """Tokens, text and finish reason of a request that nobody shares anything with."""
    fed, tokens = list(request.prompt), []
    while True:
        noise = noise_key(request.seed, len(fed) - 1) if request.temperature else None
        tokens.append(hashed(fed, noise))
        fed.append(tokens[-1])
        text = letters(tokens)
        met = [text.index(stop) for stop in request.stop if stop in text]
        if tokens[-1] == EOS and not request.ignore_eos:
            return tuple(tokens), text, "eos"
        if met:
            return tuple(tokens), text[: min(met)], "stop"
        if len(tokens) == request.max_tokens:
            return tuple(tokens), text, "length"


class HashModel:
    """Stands for `resident.SlotModel`: keys by slot and position, a future token by slot, `hashed` for a network."""

    def __init__(self, device: str = "cpu", slots: int = SLOTS) -> None:
        self.slots = slots
        self.keys = [[-1] * MAX_LEN for _ in range(slots)]
        self.tokens = [-1] * slots

    def prefill(self, prompt: Any, slot: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
        self.keys[slot][: len(prompt)] = [int(token) for token in prompt]
        self.tokens[slot] = self.sample(slot, len(prompt) - 1, sampling, 0)
        return self.out([self.tokens[slot]])

    def decode(self, positions: Any, live: Any, prefix: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
        for slot in numpy.flatnonzero(live).tolist():
            self.keys[slot][positions[slot]] = self.tokens[slot]
            self.tokens[slot] = self.sample(slot, int(positions[slot]), sampling, slot)
        return self.out([token if on else -7 for token, on in zip(self.tokens, live, strict=True)])

    def sample(self, slot: int, position: int, sampling: Mapping[str, Any], row: int) -> int:
        warm = sampling and sampling["temperature"][row] > 0
        return hashed(self.keys[slot][: position + 1], tuple(sampling["keys"][row].tolist()) if warm else None)

    def out(self, tokens: list[int]) -> dict[str, Any]:
        ids = numpy.array([tokens, [1] * len(tokens)]).T
        return dict(zip(OUTPUTS, (ids[:, 0], ids[:, 0] * -0.25, ids, ids * -0.25), strict=True))


class Engine(CausalLM):
    """The real executor, for another model."""

    def __init__(self, model: Any = HashModel, slots: int = SLOTS) -> None:
        super().__init__("nowhere", slots=slots, max_len=MAX_LEN)
        self.build = functools.partial(model, slots=slots)


def scheduler(requests: Sequence[Request] = (), **options: Any) -> SlotScheduler:
    text = functools.partial(Transcript, decode=letters)
    return SlotScheduler(requests, **{"slots": SLOTS, "eos": EOS, "max_len": MAX_LEN, "text": text, **options})


class Here:
    """A device in the test itself: a launch runs when it is submitted."""

    def load(self, build: Any) -> Any:
        return build("cpu")


def compute(launches: Launch | tuple[Launch, ...]) -> Any:
    if isinstance(launches, tuple):
        return tuple(map(compute, launches))
    positional, named = bind(launches)
    return launches.fn(*positional, **named)


def direct(plans: Any, engine: CausalLM, depth: int, script: Script | None = None) -> list[Batch]:
    """The whole idea in 12 lines; returns the batches."""
    flight, number, batches, script = deque(), 0, [], script or {}
    engine.open(Here())
    while True:
        answer = plans.plan(Ask(number, len(batches), 0.0, *script.get(number, ())))
        number += 1
        if isinstance(answer, Batch):
            batches.append(answer)
            flight.append((answer, compute(engine.launch(0, engine.prepare(0, answer)))))
        if flight and (len(flight) == depth or not isinstance(answer, Batch)):
            plans.retire(0, *flight.popleft())
        elif not flight and (answer is CLOSED or number > max(script, default=0)):
            return batches


def results(outputs: Mapping[Any, Output]) -> dict[Any, Any]:
    return {key: (output.tokens, output.text, output.finish_reason) for key, output in outputs.items()}


def expected(requests: Sequence[Request]) -> dict[Any, Any]:
    return {request.id: alone(request) for request in requests}


REQUEST = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
        "max_tokens": st.integers(1, 14),
        "temperature": st.sampled_from([0.0, 0.0, 0.7]),
        "seed": st.integers(-1, 2**64),
        "stop": st.lists(st.text("abcdefghijk", min_size=1, max_size=2), max_size=2),
        "ignore_eos": st.booleans(),
    }
)
REQUESTS = st.lists(REQUEST, max_size=7).map(lambda specs: [Request(i, **spec) for i, spec in enumerate(specs)])
REQUESTS_OF_A_TEST = [
    Request("eos", (4, 5), max_tokens=30),
    Request("length", (1,), max_tokens=5, ignore_eos=True),
    Request("stop", (7, 7, 7), max_tokens=30, ignore_eos=True, stop=("a", "bc")),
    Request("one", (2, 3), max_tokens=1),
    Request("seeded", (2, 3), max_tokens=9, temperature=1.0, seed=5, ignore_eos=True),
    Request("other seed", (2, 3), max_tokens=9, temperature=1.0, seed=6, ignore_eos=True),
]


# ---- outputs ----


@given(REQUESTS, st.sampled_from(DEPTHS), st.integers(1, 4), st.integers(1, 3))
def test_every_request_gets_what_it_would_get_alone(requests: list[Request], depth: int, slots: int, prefills: int) -> None:
    plans = scheduler(requests, slots=slots, prefills=prefills)
    batches = direct(plans, Engine(slots=slots), depth)
    assert results(plans.outputs) == expected(requests)
    assert plans.overruns == sum(len(b.prefills + b.decodes) for b in batches) - sum(len(o.tokens) for o in plans.outputs.values())
    assert depth > 1 or plans.overruns == 0


@given(REQUESTS, st.data(), st.sampled_from(DEPTHS))
def test_requests_join_and_leave_and_abort_at_any_time(requests: list[Request], data: st.DataObject, depth: int) -> None:
    script: dict[int, Any] = {}
    for request in requests:
        script.setdefault(data.draw(st.integers(0, 25)), ([], []))[0].append(request)
    for aborted in data.draw(st.lists(st.integers(0, 8), max_size=3)):
        script.setdefault(data.draw(st.integers(0, 30)), ([], []))[1].append(aborted)
    plans = scheduler(closed=False)
    direct(plans, Engine(), depth, script)
    assert set(plans.outputs) == {request.id for request in requests}
    for request in requests:
        output, (tokens, text, reason) = plans.outputs[request.id], alone(request)
        if output.finish_reason == "abort":
            assert tokens[: len(output.tokens)] == output.tokens != tokens
            assert text.startswith(output.text)
        else:
            assert (output.tokens, output.text, output.finish_reason) == (tokens, text, reason)


@given(REQUESTS, st.sampled_from(DEPTHS), st.integers(0, 12))
def test_a_failed_step_ends_its_requests_and_no_others(requests: list[Request], depth: int, bad: int) -> None:
    plans, error = scheduler(requests), RuntimeError("device says no")
    failed: set[Any] = set()

    class Flaky:
        plan = staticmethod(plans.plan)
        steps = 0

        def retire(self, step: int, batch: Batch, result: Any) -> None:
            if self.steps == bad:
                failed.update(row.request.id for row, _, _ in batch.places() if row.request.id not in plans.outputs)
                plans.fail(step, batch, error)
            else:
                plans.retire(step, batch, result)
            self.steps += 1

    direct(Flaky(), Engine(), depth)
    fine = {key: value for key, value in results(plans.outputs).items() if key not in failed}
    assert fine == expected([request for request in requests if request.id not in failed])
    assert len(plans.outputs) == len(requests)
    for request in requests:
        if request.id in failed:
            output = plans.outputs[request.id]
            assert (output.finish_reason, output.error) == ("error", error)
            assert alone(request)[0][: len(output.tokens)] == output.tokens


@pytest.mark.parametrize("depth", DEPTHS)
def test_length_is_counted_ahead_so_it_is_never_overrun(depth: int) -> None:
    requests = [Request(i, (i,), max_tokens=i + 1, ignore_eos=True) for i in range(7)]
    plans = scheduler(requests)
    batches = direct(plans, Engine(), depth)
    assert plans.overruns == 0
    assert sum(len(batch.prefills + batch.decodes) for batch in batches) == sum(range(1, 8))


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_stop_that_is_known_late_is_overrun_by_the_steps_in_flight(depth: int) -> None:
    request = next(r for r in (Request(i, (i, 3), max_tokens=40) for i in range(99)) if len(alone(r)[0]) < 20)
    plans = scheduler([request])
    direct(plans, Engine(), depth)
    assert plans.overruns == depth - 1
    assert plans.outputs[request.id].finish_reason == "eos"


def test_the_requests_of_the_test_end_in_every_way() -> None:
    assert [alone(request)[2] for request in REQUESTS_OF_A_TEST[:4]] == ["eos", "length", "stop", "length"]
    assert alone(REQUESTS_OF_A_TEST[4])[0] != alone(REQUESTS_OF_A_TEST[5])[0]


def test_outputs_have_log_probabilities_likely_tokens_and_hashes() -> None:
    request = Request("r", [1] * 20, max_tokens=13, ignore_eos=True)
    plans = scheduler([request])
    direct(plans, Engine(), 2)
    output = plans.outputs["r"]
    assert output.logprobs == tuple(token * -0.25 for token in output.tokens)
    assert [likely[0].token for likely in output.top] == list(output.tokens)
    assert len(output.blocks) == 33 // 16


# ---- plans ----


@given(REQUESTS, st.sampled_from(DEPTHS), st.integers(1, 3))
def test_slots_are_never_shared_and_prefills_are_bounded(requests: list[Request], depth: int, prefills: int) -> None:
    for batch in direct(scheduler(requests, prefills=prefills), Engine(), depth):
        slots = [row.slot for row in batch.prefills + batch.decodes]
        assert sorted(set(slots)) == sorted(slots)
        assert set(slots) <= set(range(SLOTS))
        assert len(batch.prefills) <= prefills


@given(REQUESTS, st.sampled_from(DEPTHS))
def test_a_request_is_prefilled_once_and_then_decoded_position_by_position(requests: list[Request], depth: int) -> None:
    rows: dict[Any, list[Any]] = {}
    for batch in direct(scheduler(requests), Engine(), depth):
        for row, _, _ in batch.places():
            rows.setdefault((row.request.id, row.slot, row.generation), []).append(row.position)
    assert [key[0] for key in rows] == [request.id for request in requests]
    assert len({key[2] for key in rows}) == len(rows)
    for (key, _, _), positions in rows.items():
        first = len(requests[key].prompt) - 1
        assert positions == list(range(first, first + len(positions)))


def test_a_batch_is_priced_by_what_it_feeds_and_reads() -> None:
    plans = scheduler([Request("a", (1, 2, 3)), Request("b", (4, 5))])
    first, second = plans.plan(Ask(0, 0, 0.0)), plans.plan(Ask(1, 1, 0.0))
    assert first.features == {"batch": 1, "tokens": 3, "kv_tokens": 3}
    assert second.features == {"batch": 2, "tokens": 3, "kv_tokens": 2 + 4}
    launches = Engine()
    launches.open(Here())
    prefill, decode = launches.prepare(1, second)
    assert dict(prefill.features) == {"batch": 1, "tokens": 2, "kv_tokens": 2}
    assert dict(decode.features) == {"batch": 1, "tokens": 1, "kv_tokens": 4}


def test_an_open_scheduler_is_idle_and_a_closed_one_closes() -> None:
    assert scheduler(closed=False).plan(Ask(0, 0, 0.0)) is IDLE
    assert scheduler().plan(Ask(0, 0, 0.0)) is CLOSED


def test_equal_asks_and_results_give_equal_batches() -> None:
    traces = [direct(scheduler(REQUESTS_OF_A_TEST), Engine(), 3) for _ in range(2)]
    assert traces[0] == traces[1]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        traces[0][0].decodes = ()


# ---- bad input ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ()}, "empty prompt"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"stop": ("a", "")}, "stop string is empty"),
    ],
)
def test_a_request_out_of_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Request("r", **{"prompt": (1,), **options})


def test_a_request_that_is_too_long_is_refused_at_once_or_answered_so() -> None:
    long = Request("long", [1] * 76, max_tokens=5)
    with pytest.raises(ConfigError, match=r"may become 81 tokens long .* at most 80 fit"):
        scheduler([long])
    plans = scheduler(closed=False)
    direct(plans, Engine(), 2, {0: ((long, Request("ok", (1,), max_tokens=2)), ())})
    assert plans.outputs["long"].finish_reason == "refused"
    assert "at most 80 fit" in str(plans.outputs["long"].error)
    assert plans.outputs["ok"].tokens


def test_stop_strings_without_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="makes no text"):
        scheduler([Request("r", (1,), stop=("x",))], text=None)


def test_an_id_is_used_once() -> None:
    with pytest.raises(ConfigError, match="'r' was used before"):
        scheduler([Request("r", (1,)), Request("r", (2,))])


def test_an_output_of_another_shape_is_refused() -> None:
    plans = scheduler([Request("r", (1,))])
    batch = plans.plan(Ask(0, 0, 0.0))
    with pytest.raises(SchedulerProtocolError, match="must be a mapping with tokens"):
        plans.retire(0, batch, [1, 2])
    with pytest.raises(SchedulerProtocolError, match=r"1 launches.*2 outputs"):
        plans.retire(0, batch, (HashModel().out([1]), HashModel().out([1])))


def test_an_executor_with_fewer_slots_or_positions_refuses_the_row() -> None:
    plans = scheduler([Request(i, (1,)) for i in range(3)], prefills=3)
    engine = Engine(slots=2)
    engine.open(Here())
    with pytest.raises(ConfigError, match="slot 2, position 0; this executor has slots 0 to 1"):
        engine.prepare(0, plans.plan(Ask(0, 0, 0.0)))
    engine.max_len = 0
    with pytest.raises(ConfigError, match="positions 0 to -1"):
        engine.prepare(0, scheduler([Request(0, (1,))]).plan(Ask(0, 0, 0.0)))


@pytest.mark.parametrize("options", [{"slots": 0}, {"prefills": 0}])
def test_no_slots_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        scheduler(**options)
    with pytest.raises(ConfigError, match="at least 1"):
        CausalLM("nowhere", slots=0)


# ---- the executor ----


@given(st.integers(1, 100_000))
def test_a_prefix_bucket_holds_its_keys_and_is_a_power_of_two(length: int) -> None:
    bucket = prefix_bucket(length)
    assert bucket >= length
    assert bucket & (bucket - 1) == 0
    assert bucket == 64 or bucket < 2 * length


@given(st.integers(), st.integers(0, 2**31))
def test_noise_keys_are_int32_and_depend_on_seed_and_position(seed: int, position: int) -> None:
    keys = noise_key(seed, position)
    assert keys == noise_key(seed, position)
    assert all(-(2**31) <= key < 2**31 for key in keys)
    assert len({keys, noise_key(seed + 1, position), noise_key(seed, position + 1)}) == 3


def test_sampling_arrays_are_only_sent_where_some_row_samples() -> None:
    engine = Engine()
    engine.open(Here())
    row = scheduler([Request(0, (1,))]).plan(Ask(0, 0, 0.0)).prefills[0]
    warm = row._replace(request=Request(1, (1,), temperature=0.5, seed=3), slot=1)
    narrow = row._replace(request=Request(2, (1,), temperature=0.5, top_k=4, top_p=0.5), slot=2)
    sent = [engine.prepare(0, Batch((), rows))[0].inputs["sampling"] for rows in ((row,), (row, warm), (row, warm, narrow))]
    assert [set(arrays) for arrays in sent] == [set(), {"temperature", "keys"}, {"temperature", "keys", "top_k", "top_p"}]
    assert sent[1]["temperature"].tolist() == [0, 0.5, 0]
    assert tuple(sent[1]["keys"][1]) == noise_key(3, 0)
    assert sent[2]["top_k"].tolist() == [2**31, 2**31, 4]
    assert sent[2]["top_p"].tolist() == [1, 1, 0.5]


def test_a_stub_has_the_shapes_of_an_output() -> None:
    plans, engine = scheduler([Request(i, (1,)) for i in range(2)]), Engine()
    engine.open(Here())
    real = [compute(engine.launch(0, engine.prepare(0, plans.plan(Ask(i, i, 0.0))))) for i in range(2)][1]
    stubs = tuple(launch.stub() for launch in engine.prepare(0, Batch(*(2 * [plans.plan(Ask(2, 2, 0.0)).decodes[:1]]))))
    for stub, output in zip(stubs, real, strict=True):
        assert {name: len(array) for name, array in stub.items()} == {name: len(array) for name, array in output.items()}


def test_the_host_side_imports_neither_torch_nor_a_tokenizer() -> None:
    code = "import ovsdk.models, ovsdk.models.smollm2, sys; print({'torch', 'transformers', 'tokenizers', 'jinja2'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


# ---- through the drivers ----


class Scripted:
    """An admission with arrivals and aborts by number of the ask."""

    signal = None

    def __init__(self, script: Script) -> None:
        self.script, self.next = script, 0

    def take(self, number: int, step: int, now_s: float) -> Ask:
        self.next = number + 1
        return Ask(number, step, now_s, *self.script.get(number, ()))

    def ready(self, now_s: float) -> bool:
        return not self.exhausted()

    def exhausted(self) -> bool:
        return self.next > max(self.script)

    def next_s(self) -> None:
        return None


SCRIPT = {0: (tuple(REQUESTS_OF_A_TEST[:2]), ()), 3: (tuple(REQUESTS_OF_A_TEST[2:]), ()), 9: ((Request("late", (9,)),), ("eos", "nobody"))}
PRICES: dict[str, Any] = {
    "schema": 1,
    "stage": {"plan_us": 30, "prepare_us": {"us": 5, "per": {"tokens": 2}}, "launch_us": 10, "retire_us": 60},
    "launch": {"prefill": {"device_us": {"us": 100, "per": {"tokens": 20}}}, "decode": {"device_us": {"us": 90, "per": {"kv_tokens": 1}}}},
}


@pytest.mark.parametrize(("backend", "options"), [("thread", {}), ("sim", {"prices": PRICES, "execute": True})])
@pytest.mark.parametrize("driver", ["inline", "threads"])
def test_drivers_and_backends_take_the_decisions_of_the_direct_loop(driver: str, backend: str, options: dict[str, Any]) -> None:
    for depth in DEPTHS:
        oracle = scheduler(closed=False)
        batches = direct(oracle, Engine(), depth, SCRIPT)
        plans, seen = scheduler(closed=False), []
        retire = plans.retire
        plans.retire = lambda step, batch, result, seen=seen, retire=retire: (seen.append(batch), retire(step, batch, result))
        with ovsdk.open_backend(backend, **options) as device:
            report = ovsdk.run(plans, Engine(), device, depth=depth, driver=driver, admission=Scripted(SCRIPT))
        assert seen == batches
        assert plans.outputs == oracle.outputs
        assert report.overruns == plans.overruns == oracle.overruns


def test_a_log_replays_to_the_same_outputs_where_nothing_is_computed(tmp_path: Path) -> None:
    recorded, replayed = scheduler(closed=False), scheduler(closed=False)
    with ovsdk.open_backend("thread") as device:
        ovsdk.run(recorded, Engine(), device, depth=3, admission=Scripted(SCRIPT), log=tmp_path / "run.log")
    with ovsdk.open_backend("sim", prices=PRICES) as device:
        ovsdk.run(replayed, Engine(), device, depth=3, replay=tmp_path / "run.log")
    assert replayed.outputs == recorded.outputs
    assert recorded.outputs


def test_without_execution_the_simulator_still_runs_every_request_to_its_length() -> None:
    plans = scheduler([Request(i, (1, 2), max_tokens=4 + i) for i in range(5)])
    with ovsdk.open_backend("sim", prices=PRICES) as device:
        ovsdk.run(plans, Engine(), device)
    assert [(len(o.tokens), o.finish_reason) for o in plans.outputs.values()] == [(4 + i, "length") for i in range(5)]


# ---- what is wrong is caught ----


class Stale(HashModel):
    """Gathers the future tokens of the step before: the scatter comes one step late."""

    def __init__(self, device: str = "cpu", slots: int = SLOTS) -> None:
        super().__init__(device, slots)
        self.late = list(self.tokens)

    def decode(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        now, self.tokens = self.tokens, self.late
        out = super().decode(*args, **kwargs)
        self.late = now
        return out


class Shared(HashModel):
    """One future token for all slots."""

    def decode(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.tokens[:] = [self.tokens[0]] * self.slots
        return super().decode(*args, **kwargs)


class BySlot(SlotScheduler):
    """Recognises a row by its slot alone: a late row goes to the slot's next owner."""

    def _live_or_overrun(self, row: Any) -> Any:
        return next((live for live in self._live.values() if live.slot == row.slot), None)


class Impatient(SlotScheduler):
    """Gives a slot away while its owner still has rows to plan."""

    def _admit(self) -> Any:
        self._free.appendleft(next(iter(self._live.values())).slot) if self._live else None
        return super()._admit()


@pytest.mark.parametrize("model", [HashModel, Stale, Shared])
def test_wrong_future_tokens_are_caught(model: type[HashModel]) -> None:
    plans = scheduler(REQUESTS_OF_A_TEST)
    direct(plans, Engine(model), 2)
    assert (results(plans.outputs) == expected(REQUESTS_OF_A_TEST)) is (model is HashModel)


@pytest.mark.parametrize("kind", [SlotScheduler, BySlot, Impatient])
def test_wrong_schedulers_are_caught(kind: type[SlotScheduler]) -> None:
    requests = [Request(i, (i % 12, 3), max_tokens=20, stop=("a", "b")) for i in range(9)]
    plans = kind(requests, slots=SLOTS, eos=EOS, text=functools.partial(Transcript, decode=letters))
    try:
        direct(plans, Engine(), 3)
    except (KeyError, IndexError, RuntimeError):
        assert kind is not SlotScheduler
    else:
        assert (results(plans.outputs) == expected(requests)) is (kind is SlotScheduler)
