"""Overlap on and off, on every backend and driver: the same tokens of a real model, which are the known ones."""

from __future__ import annotations

import os

import pytest

from ovsdk import open_backend, run
from ovsdk.models.causal_lm import CausalLM
from ovsdk.models.slots import Request, SlotScheduler

from .test_smollm2 import GOLDEN, QUESTIONS, smol, tokenizer  # noqa: F401  # fixtures
from .toys import EMULATED

TOKENS = 10
PRICES = {
    "schema": 1,
    "stage": dict.fromkeys(("plan_us", "prepare_us", "launch_us", "retire_us"), 100),
    "launch": {"prefill": {"device_us": 3000}, "decode": {"device_us": 2000}},
}
BACKENDS = {"cpu": {}, "thread": {}, "sim": {"prices": PRICES, "execute": True}, **dict(EMULATED)}


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_smollm2_gives_the_known_tokens_at_every_depth_and_driver(name, smol, tokenizer, monkeypatch):  # noqa: F811
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    requests = [Request(q, tokenizer.chat(q), max_tokens=TOKENS, seed=3) for q in QUESTIONS]
    requests.append(Request("sampled", tokenizer.chat(QUESTIONS[2]), max_tokens=TOKENS, temperature=0.9, seed=5))
    engine = CausalLM(smol, slots=5, max_len=64)
    answers = []
    with open_backend(name, **BACKENDS[name]) as backend:
        for driver in ("inline", "threads"):
            for depth in (1, 2):
                plans = SlotScheduler(requests, slots=5, eos=tokenizer.eos, max_len=64)
                run(plans, engine, backend, driver=driver, depth=depth)
                answers.append({key: output.tokens for key, output in plans.outputs.items()})
    assert all(answer == answers[0] for answer in answers)
    assert [answers[0][q] for q in QUESTIONS] == [tokens[:TOKENS] for tokens in GOLDEN]
    assert len(answers[0]["sampled"]) == TOKENS
