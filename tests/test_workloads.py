"""Workloads: their statistics against the theory, traces there and back, and what is refused."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovsdk import ConfigError, Launch, open_backend, run
from ovsdk.joining import Joining
from ovsdk.models import CausalLM, SlotScheduler
from ovsdk.saturated import PricedBatch
from ovsdk.traces import FORMATS, Item, read_trace, write_trace
from ovsdk.workloads import (
    LENGTHS,
    Bursts,
    Poisson,
    admission,
    length,
    parse_arrivals,
    refuse_unbounded,
    service_rate,
    slot_request,
    uniform,
    workload,
)

from .test_metrics import PRICES, slot_run

MANY = 20_000
SEEDS = (0, 1, 7)


def gaps(arrivals, seed, count=MANY):
    times = [item.at_s for item in workload(arrivals, count, seed)]
    return [later - sooner for sooner, later in itertools.pairwise([0.0, *times])]


# ---- statistics ----


@pytest.mark.parametrize("seed", SEEDS)
def test_poisson_gaps_are_exponential(seed):
    """Mean 1/rate, variation 1, and independent: within four standard errors."""
    seen = gaps(Poisson(5), seed)
    mean, deviation = statistics.mean(seen), statistics.stdev(seen)
    assert mean == pytest.approx(0.2, rel=4 / math.sqrt(MANY))
    assert deviation / mean == pytest.approx(1, abs=0.05)
    assert abs(statistics.correlation(seen[:-1], seen[1:])) < 4 / math.sqrt(MANY)
    assert sum(gap > 0.2 for gap in seen) / MANY == pytest.approx(math.exp(-1), abs=0.015)


@pytest.mark.parametrize("seed", SEEDS)
def test_bursts_have_the_rate_and_the_variation_of_an_interrupted_poisson_process(seed):
    """Kuczura's: the gaps are hyperexponential, with squared variation 1 + 2 rate / on / (1/on + 1/off)**2."""
    arrivals = Bursts(50, 1, 3)
    assert arrivals.mean_rate == 12.5
    seen = gaps(arrivals, seed, 4 * MANY)
    assert 1 / statistics.mean(seen) == pytest.approx(12.5, rel=0.1)
    squared = statistics.variance(seen) / statistics.mean(seen) ** 2
    assert squared == pytest.approx(1 + 2 * 50 * 1 / (1 + 1 / 3) ** 2, rel=0.15)
    assert max(seen) > 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_burst_ends_when_it_is_over_not_with_its_last_request(seed):
    """The rate, within four standard errors of a renewal process."""
    squared = 1 + 2 * 5 * 1 / (1 + 1) ** 2
    assert 1 / statistics.mean(gaps(Bursts(5, 1, 1), seed, 4 * MANY)) == pytest.approx(2.5, rel=4 * math.sqrt(squared / 4 / MANY))


LAWS = {
    "fixed:7": (7, 0),
    "uniform:3,9": (6, math.sqrt((7**2 - 1) / 12)),
    "geometric:20": (20, math.sqrt(20 * 19)),
    "lognormal:100,0.5": (100 * math.exp(0.125), 100 * math.exp(0.125) * math.sqrt(math.exp(0.25) - 1)),
}


@pytest.mark.parametrize("text", LAWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_have_mean_and_deviation_of_their_law(text, seed):
    seen = [item.output for item in workload(Poisson(1), MANY, seed, output=text)]
    mean, deviation = LAWS[text]
    assert statistics.mean(seen) == pytest.approx(mean, abs=4 * deviation / math.sqrt(MANY) + 0.01)
    assert statistics.pstdev(seen) == pytest.approx(deviation, rel=0.05)
    assert min(seen) >= 1


def test_every_law_is_tested():
    assert {text.partition(":")[0] for text in LAWS} == set(LENGTHS)


def test_uniform_lengths_reach_both_ends_and_no_further():
    assert {item.prompt for item in workload(Poisson(1), 500, 0, prompt="uniform:3,9")} == set(range(3, 10))


@given(st.floats(0, 1, exclude_max=True), st.sampled_from([*LAWS, "geometric:1", "lognormal:1,3", "lognormal:5,0", "uniform:1,1"]))
def test_a_length_is_a_positive_int_that_grows_with_its_draw(u, text):
    law = length(text)
    assert isinstance(law(u), int)
    assert 1 <= law(0.0) <= law(u)


# ---- a function of its arguments ----


@given(st.integers(0, 2**40), st.integers(1, 60), st.integers(1, 60))
def test_a_longer_workload_begins_with_the_shorter(seed, count, more):
    for arrivals in (Poisson(3), Bursts(9, 1, 1)):
        assert workload(arrivals, count + more, seed, output="geometric:9")[:count] == workload(arrivals, count, seed, output="geometric:9")


def test_seeds_and_streams_differ_and_rates_share_their_draws():
    one, other = (workload(Poisson(5), 50, seed, "uniform:1,1000", "uniform:1,1000") for seed in (1, 2))
    assert [item.prompt for item in one] != [item.prompt for item in other]
    assert [item.prompt for item in one] != [item.output for item in one]
    twice = workload(Poisson(10), 50, 1, "uniform:1,1000", "uniform:1,1000")
    assert [item[2:] for item in twice] == [item[2:] for item in one]
    assert [item.at_s * 2 for item in twice] == pytest.approx([item.at_s for item in one])


def test_draws_are_what_they_were():
    """Pinned: a seed means the same workload on every machine and in every version."""
    assert list(itertools.islice(uniform(1, "gaps"), 3)) == [0.3733915307747028, 0.15571084521903722, 0.14757811436136747]


# ---- traces ----

items_ = st.lists(
    st.builds(Item, st.just(0), st.floats(0, 1e6), st.integers(1, 10**6), st.integers(1, 10**5)), min_size=1, max_size=30
).map(lambda items: [item._replace(id=n, at_s=item.at_s) for n, item in enumerate(sorted(items, key=lambda i: i.at_s))])


@given(items=items_)
def test_a_trace_comes_back_from_its_file(tmp_path_factory, items):
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    write_trace(path, items)
    assert read_trace(path).recorded == tuple(item._replace(at_s=item.at_s - items[0].at_s) for item in items)


TRACES = {
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
        [(0.0, 374, 44), (4.314579, 396, 109)],
    ),
    "azure 2024": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:00+02:00,2399,6\n",
        [(0.0, 2399, 6), (0.00993, 2162, 5)],
    ),
    "burstgpt": (
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
        ),
        [(0.0, 472, 18), (40.0, 1087, 230)],
    ),
    "mooncake": (
        (
            '{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1]}\n'
            '{"timestamp": 3052, "input_length": 7234, "output_length": 794, "hash_ids": []}\n'
        ),
        [(0.0, 6755, 500), (3.052, 7234, 794)],
    ),
    "mooncake as csv": ("timestamp,input_length,output_length\n1000,5,6\n", [(0.0, 5, 6)]),
}


@pytest.mark.parametrize("name", TRACES)
def test_public_traces_are_read_by_their_columns(tmp_path, name):
    text, expected = TRACES[name]
    path = tmp_path / "trace"
    path.write_text("\ufeff" + text if name == "burstgpt" else text, encoding="utf-8")
    read = parse_arrivals(str(path)).items(0)
    assert [(pytest.approx(item.at_s, abs=1e-7), item.prompt, item.output) for item in read] == expected


def test_lengths_of_a_trace_are_kept_and_its_end_is_the_workload_s(tmp_path):
    path = tmp_path / "trace.csv"
    write_trace(path, [Item(0, 0.0, 5, 6), Item(1, 1.0, 7, 8)])
    assert workload(read_trace(path), 99, 3, "fixed:1", "fixed:1") == (Item(0, 0.0, 5, 6), Item(1, 1.0, 7, 8))
    assert len(workload(read_trace(path), 1)) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("time,in,out\n1,2,3\n", r"its columns are 'time', 'in', 'out'; a trace has \(case matters\):"),
        ("", "no requests in it"),
        ("at_s,prompt_tokens,output_tokens\n", "no requests in it"),
        ("at_s,prompt_tokens,output_tokens\n1,2,3\n2,x,3\n", "request 2: invalid literal"),
        ("at_s,prompt_tokens,output_tokens\n1,2,3\n2,9\n", "request 2"),
        ("at_s,prompt_tokens,output_tokens\n1,2,0\n", "request 1: .* leave failed requests out"),
        ("at_s,prompt_tokens,output_tokens\nnan,2,3\n", "request 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,2,3\n", "'yesterday' is no date like"),
        ('{"timestamp": 1, "input_length": 3}\n', "its columns are"),
        ('{"timestamp": 1, "input', "not JSON lines"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 1}\n', "request 2: 'input_length'"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text, told):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_trace(path)


def test_the_list_of_formats_is_told(tmp_path):
    path = tmp_path / "trace"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError) as told:
        read_trace(path)
    assert all(f"{f.time}, {f.prompt}, {f.output}  ({f.name})" in str(told.value) for f in FORMATS)


# ---- logs ----


def logged(path, scheduler, items, make):
    with open_backend("sim", prices=PRICES) as sim:
        run(scheduler, Both(), sim, log=path, admission=admission(items, make))
    return list(parse_arrivals(str(path)).items(0))


class Both(CausalLM):
    """The executor of either scheduler."""

    def __init__(self):
        super().__init__("not needed", slots=8)

    def prepare(self, step, batch):
        return Launch(batch.kind, fn=len, features=batch.features) if isinstance(batch, PricedBatch) else super().prepare(step, batch)

    def launch(self, step, inputs):
        return inputs if isinstance(inputs, Launch) else super().launch(step, inputs)


SHORT = workload(Poisson(40), 30, 2, "uniform:2,9", "uniform:1,5")


def test_items_come_back_from_a_run_log(tmp_path):
    assert logged(tmp_path / "log", Joining(30, full=False), SHORT, lambda item: item) == list(SHORT)


def test_requests_come_back_from_a_run_log_when_an_ask_saw_them(tmp_path):
    again = logged(tmp_path / "log", SlotScheduler(closed=False), SHORT, slot_request)
    assert [item[2:] for item in again] == [item[2:] for item in SHORT]
    assert all(0 <= seen.at_s - came.at_s < 0.05 for seen, came in zip(again, SHORT, strict=True))


def test_requests_of_unknown_length_get_one(tmp_path):
    class Words(Joining):
        def plan(self, ask):
            return super().plan(ask._replace(arrivals=tuple(SHORT[int(word)] for word in ask.arrivals)))

    words = logged(tmp_path / "log", Words(30, full=False), SHORT, lambda item: str(item.id))
    assert {item[2:] for item in words} == {(0, 0)}
    again = workload(parse_arrivals(str(tmp_path / "log")), 99, 0, "fixed:7", "fixed:9")
    assert [(item.at_s, 7, 9) for item in words] == [item[1:] for item in again]


# ---- text ----


def test_texts_of_arrivals():
    assert parse_arrivals("poisson:2.5") == Poisson(2.5)
    assert parse_arrivals("bursts:50,1,3") == Bursts(50, 1, 3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("poisson:0", "an arrival rate .* above 0; got 0.0"),
        ("poisson:-2", "write poisson:RATE, with 1 finite numbers"),
        ("poisson:inf", "write poisson:RATE"),
        ("poisson:nan", "write poisson:RATE"),
        ("poisson:1,2", "write poisson:RATE"),
        ("poisson:fast", "could not convert .* write poisson:RATE"),
        ("poison:1", "did you mean 'poisson:RATE'"),
        ("bursts:5,0,1", r"ON \(seconds\) .* got 0.0"),
        ("bursts:5", "write bursts:RATE,ON,OFF, with 3"),
        ("nowhere.csv", "no file 'nowhere.csv'; arrivals are poisson:RATE, bursts:RATE,ON,OFF, or the path"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(text, told):
    with pytest.raises(ConfigError, match=told):
        parse_arrivals(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("normal:3", "unknown length distribution"),
        ("fixed", "write fixed:TOKENS"),
        ("fixed:0", "at least 1 token; got 0"),
        ("uniform:9,3", "needs LOW at most HIGH"),
        ("uniform:3", "write uniform:LOW,HIGH, with 2"),
        ("lognormal:0,1", "at least 1 token"),
        ("geometric:0.5", "at least 1 token"),
    ],
)
def test_lengths_that_cannot_be_are_refused(text, told):
    with pytest.raises(ConfigError, match=told):
        workload(Poisson(1), 1, prompt=text)


@pytest.mark.parametrize("bad", [{"count": 0}, {"count": 2.5}, {"count": 3, "seed": -1}, {"count": 3, "seed": "x"}])
def test_counts_and_seeds_that_cannot_be_are_refused(bad):
    with pytest.raises(ConfigError, match=r"(count is|a seed is) .*got"):
        workload(Poisson(1), **bad)


# ---- load ----


def test_a_rate_above_what_is_served_grows_the_queue_without_bound():
    served = service_rate(slots=8, output=100, step_s=0.05)
    assert served == pytest.approx(1.6)
    refuse_unbounded(1.5, served)
    for rate in (1.6, 2.0):
        with pytest.raises(ConfigError, match=r"at most 1\.6 can be served \(load 1\.\d\d\): the queue grows without bound"):
            refuse_unbounded(rate, served)


def test_the_rate_that_is_refused_is_the_rate_at_which_queueing_explodes():
    """Four slots, 12 tokens on average: below the bound the queueing time stays, above it grows with the length of the run."""
    _, _, _, items = slot_run(Poisson(40), 400)
    mean = statistics.mean(item.output for item in items)
    served = service_rate(4, mean, 6.2e-3)  # a decode of four with every third step's prefill
    waits = {load: [slot_run(Poisson(load * served), count)[0].latency["queued_s"]["mean"] for count in (150, 600)] for load in (0.5, 2.0)}
    assert waits[0.5][1] < 2 * waits[0.5][0]
    assert waits[2.0][1] > 3 * waits[2.0][0]


def test_slot_requests_are_as_long_as_the_item_says():
    request = slot_request(Item(3, 0.0, 5, 6))
    assert (request.id, len(request.prompt), request.max_tokens, request.ignore_eos) == (3, 5, 6, True)
