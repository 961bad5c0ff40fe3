"""A causal language model on a device: the network against transformers, rows against their neighbours, one engine on every device.

The models are small and random. What needs torch or transformers is skipped with the reason where that is not installed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ovsdk
from ovsdk.errors import ConfigError
from ovsdk.models.causal_lm import CausalLM, noise_key, prefix_bucket
from ovsdk.models.slots import Batch, Request, Row, SlotScheduler

from .test_slots import PRICES, compute, direct
from .toys import EMULATED

torch = pytest.importorskip("torch", reason="needs torch: pip install 'ovsdk[torch]'")
pytest.importorskip("safetensors", reason="needs safetensors: pip install 'ovsdk[llm]'")

from ovsdk.models import llama, sampling  # noqa: E402
from ovsdk.models.resident import SlotModel, build  # noqa: E402

SLOTS, MAX_LEN, VOCAB = 4, 300, 97
NUMBERS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": VOCAB, "hidden_size": 48,
    "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
}  # fmt: skip


def write_model(folder: Path, **changes: Any) -> Path:
    """A small Llama with random weights, as a Hugging Face folder."""
    from safetensors.torch import save_file

    numbers = {**NUMBERS, **changes}
    heads, kv_heads, d = numbers["num_attention_heads"], numbers["num_key_value_heads"], numbers["head_dim"]
    hidden, inner = numbers["hidden_size"], numbers["intermediate_size"]
    layer = {
        "self_attn.q_proj": (heads * d, hidden), "self_attn.k_proj": (kv_heads * d, hidden), "self_attn.v_proj": (kv_heads * d, hidden),
        "self_attn.o_proj": (hidden, heads * d), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    shapes = {f"layers.{i}.{name}": shape for i in range(numbers["num_hidden_layers"]) for name, shape in layer.items()}
    shapes |= {"embed_tokens": (VOCAB, hidden), "norm": (hidden,)}
    seeded = torch.Generator().manual_seed(0)
    weights = {f"model.{name}.weight": torch.randn(shape, generator=seeded) * shape[-1] ** -0.5 * 2 for name, shape in shapes.items()}
    if not numbers["tie_word_embeddings"]:
        weights["lm_head.weight"] = torch.randn((VOCAB, hidden), generator=seeded)
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(numbers))
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def network(tiny: Path) -> llama.Llama:
    return llama.load_llama(tiny)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def greedy(model: SlotModel, prompt: Sequence[int], count: int, slot: int = 0) -> list[int]:
    """`count` tokens by a plain loop: one request in a model of its own."""
    tokens = model.prefill(numpy.array(prompt), slot, {})["tokens"].tolist()
    live = numpy.arange(len(model.rows)) == slot
    for position in range(len(prompt), len(prompt) + count - 1):
        out = model.decode(live * position, live, prefix_bucket(position + 1), {})
        tokens.append(int(out["tokens"][slot]))
    return tokens


def recomputed(network: llama.Llama, prompt: Sequence[int], count: int) -> list[int]:
    """The same without a cache: everything again for each token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(SlotModel(network, 1, len(tokens)).prefill(numpy.array(tokens), 0, {})["tokens"].item())
    return tokens[len(prompt) :]


# ---- the network ----


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False, "num_key_value_heads": 6},
        {"head_dim": 8, "rope_parameters": None, "rope_theta": 500.0},
    ],
)
def test_logits_and_greedy_tokens_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path, transformers: Any) -> None:
    folder = write_model(tmp_path, **changes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours, prompt = llama.load_llama(folder), torch.arange(5, 45) % VOCAB
    positions = torch.arange(len(prompt))[None]
    with torch.inference_mode():
        expected = theirs(prompt[None]).logits[:, -1]
        torch.testing.assert_close(ours.forward(prompt[None], positions, causal), expected, rtol=1e-4, atol=1e-4)
        generated = theirs.generate(prompt[None], max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert greedy(SlotModel(ours, SLOTS, MAX_LEN), prompt.tolist(), 40) == generated[0, len(prompt) :].tolist()


def causal(layer: int, q: Any, k: Any, v: Any) -> Any:
    """Attention of one sequence in the open: a softmax over what came before."""
    q, k, v = (
        x.transpose(1, 2) for x in (q, k.repeat_interleave(q.shape[2] // k.shape[2], 2), v.repeat_interleave(q.shape[2] // v.shape[2], 2))
    )
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_cache_gives_what_computing_everything_again_gives(network: llama.Llama) -> None:
    prompt = [(7 * i) % VOCAB for i in range(60)]  # over the first prefix bucket
    assert greedy(SlotModel(network, SLOTS, MAX_LEN), prompt, 12, slot=2) == recomputed(network, prompt, 12)


def test_half_precision_is_close(tiny: Path, network: llama.Llama) -> None:
    prompt = numpy.arange(20)
    full, half = (SlotModel(net, 1, 64).prefill(prompt, 0, {}) for net in (network, llama.load_llama(tiny, dtype="bfloat16")))
    assert half["logprobs"].dtype == numpy.float32
    assert numpy.abs(full["top_logprobs"] - half["top_logprobs"]).max() < 0.25


def test_outputs_are_numpy_arrays_of_the_promised_types(network: llama.Llama) -> None:
    out = SlotModel(network, SLOTS, 64).decode(numpy.zeros(SLOTS, numpy.int64), numpy.ones(SLOTS, numpy.bool_), 64, {})
    shapes = {name: (array.dtype.name, array.shape) for name, array in out.items()}
    assert shapes == {
        "tokens": ("int64", (SLOTS,)), "logprobs": ("float32", (SLOTS,)),
        "top_ids": ("int64", (SLOTS, 5)), "top_logprobs": ("float32", (SLOTS, 5)),
    }  # fmt: skip
    assert (out["logprobs"] == out["top_logprobs"][:, 0]).all()
    assert (out["tokens"] == out["top_ids"][:, 0]).all()


def test_a_model_may_be_built_inside_or_outside_of_inference_mode(tiny: Path) -> None:
    plain = greedy(build(tiny, 1, 64, "float32", "cpu"), [1, 2, 3], 4)
    with torch.inference_mode():
        assert greedy(build(tiny, 1, 64, "float32", "cpu"), [1, 2, 3], 4) == plain


# ---- rows do not depend on each other ----


def generate_beside(network: llama.Llama, mine: Request, slot: int, neighbours: Mapping[int, Request], count: int) -> list[list[float]]:
    """`mine` in a slot, token by token beside others: all numbers that the host gets of its row."""
    engine = CausalLM("nowhere", slots=SLOTS, max_len=MAX_LEN)
    engine.model = SlotModel(network, SLOTS, MAX_LEN)
    requests = {**neighbours, slot: mine}
    rows = [Row(request, s, 0, len(request.prompt) - 1) for s, request in requests.items()]
    numbers = []
    for step in range(count):
        batch = Batch((), tuple(rows)) if step else Batch(tuple(rows), ())
        outputs = compute(engine.launch(0, engine.prepare(0, batch)))
        place = next((launch, index) for row, launch, index in batch.places() if row.slot == slot)
        out = outputs[place[0]] if isinstance(outputs, tuple) else outputs
        numbers.append([float(x) for name in out for x in numpy.atleast_1d(out[name][place[1]])])
        rows = [row._replace(position=row.position + 1) for row in rows]
    return numbers


@st.composite
def surroundings(draw: st.DrawFn) -> dict[int, Request]:
    slots = draw(st.sets(st.integers(0, SLOTS - 1)))
    order = draw(st.permutations(sorted(slots)))
    return {
        s: Request(
            f"neighbour {s}",
            draw(st.integers(1, 96).flatmap(lambda first: st.integers(1, 200).map(lambda n: [(first * i) % VOCAB for i in range(n)]))),
            temperature=draw(st.sampled_from([0.0, 0.8])),
            top_k=draw(st.sampled_from([0, 5])),
            seed=draw(st.integers(0, 9)),
        )
        for s in order
    }


MINE = [
    Request("greedy", range(3, 40)),
    Request("seeded", range(50, 80), temperature=0.9, seed=4),
    Request("narrow", range(50, 80), temperature=0.9, seed=4, top_k=7, top_p=0.8),
]


@pytest.mark.parametrize("mine", MINE, ids=lambda request: request.id)
@settings(max_examples=15)
@given(neighbours=surroundings(), slot=st.integers(0, SLOTS - 1))
def test_a_row_is_the_same_to_the_bit_beside_any_neighbours(
    network: llama.Llama, mine: Request, neighbours: dict[int, Request], slot: int
) -> None:
    alone = generate_beside(network, mine, slot, {}, 4)
    beside = generate_beside(network, mine, slot, {s: r for s, r in neighbours.items() if s != slot}, 4)
    assert alone == beside


@pytest.mark.parametrize("longer", [128, 256, 512])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masked_keys_change_no_bit(tiny: Path, dtype: str, longer: int) -> None:
    model = build(tiny, SLOTS, 512, dtype, "cpu")
    for slot in range(SLOTS):
        model.prefill(numpy.arange(200) % VOCAB, slot, {})  # a former owner's keys, which the mask hides
    for length in (20, 60):
        model.prefill(numpy.arange(length) % VOCAB, 1, {})
        live, positions = numpy.arange(SLOTS) == 1, numpy.full(SLOTS, length)
        tokens = model.tokens.clone()
        outs = []
        for prefix in (64, longer):
            model.tokens.copy_(tokens)
            outs.append({name: array[1].tolist() for name, array in model.decode(positions, live, prefix, {}).items()})
        assert outs[0] == outs[1]


def test_rows_that_are_not_live_write_nothing(network: llama.Llama) -> None:
    model = SlotModel(network, SLOTS, 64)
    for slot in range(SLOTS):
        model.prefill(numpy.arange(10 + slot), slot, {})
    cache_before, tokens_before = model.cache.clone(), model.tokens.clone()
    live = numpy.array([False, True, False, False])
    model.decode(live * 11, live, 64, {})
    assert torch.equal(model.tokens[[0, 2, 3]], tokens_before[[0, 2, 3]])
    changed = (model.cache != cache_before)[..., : model.length, :].any(-1).nonzero()
    assert {(slot, position) for _, _, slot, _, position in changed.tolist()} == {(1, 11)}


# ---- sampling ----


def draw(logits: Sequence[float], count: int, **options: float) -> Any:
    """How often each token comes in `count` draws, each at a position of its own."""
    rows = torch.tensor(logits).repeat(count, 1)
    arrays = {"temperature": torch.full((count,), options.pop("temperature", 1.0))}
    arrays["keys"] = torch.tensor([noise_key(1, position) for position in range(count)], dtype=torch.int32)
    if options:
        arrays["top_k"] = torch.full((count,), int(options.get("top_k", 2**31)))
        arrays["top_p"] = torch.full((count,), float(options.get("top_p", 1.0)))
    return torch.bincount(sampling.pick(rows, arrays), minlength=len(logits)) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = [0.0, 1.0, 2.0, -1.0, 0.5, 3.0]
    probability = (torch.tensor(logits) / temperature).softmax(0)
    deviation = (probability * (1 - probability) / 20_000).sqrt()
    assert ((draw(logits, 20_000, temperature=temperature) - probability).abs() < 4 * deviation).all()


@given(
    st.lists(st.integers(-8, 8), min_size=2, max_size=8, unique=True).map(lambda xs: [x / 2 for x in xs]),
    st.integers(1, 9),
    st.floats(0.05, 1.0),
)
def test_only_likely_tokens_are_drawn(logits: list[float], top_k: int, top_p: float) -> None:
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[:top_k]
    weights = torch.tensor([logits[i] for i in order], dtype=torch.float64).softmax(0).tolist()
    kept = [i for n, i in enumerate(order) if sum(weights[:n]) < top_p - 1e-5]
    maybe = [i for n, i in enumerate(order) if n == 0 or sum(weights[:n]) < top_p + 1e-5]
    drawn = draw(logits, 400, top_k=top_k, top_p=top_p).nonzero().flatten().tolist()
    assert set(drawn) <= set(maybe)
    filtered = sampling._keep_likely(torch.tensor([logits]), torch.tensor([[top_k]]), torch.tensor([[top_p]]))
    assert set(kept) <= set(filtered.isfinite()[0].nonzero().flatten().tolist()) <= set(maybe)


def test_a_top_p_of_one_keeps_every_token_though_sums_are_rounded() -> None:
    logits = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(3)) * 3
    everything = torch.full((4, 1), 2**31), torch.ones(4, 1)
    assert torch.equal(sampling._keep_likely(logits, *everything), logits)


def test_noise_has_no_pattern_over_the_vocabulary() -> None:
    keys = torch.tensor([*(noise_key(0, position) for position in range(2)), (1, 2), (1, 3)], dtype=torch.int32)
    noise = sampling._gumbel(keys, 50_000)
    assert noise.isfinite().sum() >= noise.numel() - 1
    assert (noise.mean(1) - 0.5772).abs().max() < 0.03
    assert (noise.std(1) - 1.2825).abs().max() < 0.03
    correlation = torch.corrcoef(torch.cat((noise, noise.roll(1, 1))))
    assert (correlation - torch.eye(8)).abs().max() < 0.03


def test_temperature_zero_is_greedy_beside_a_row_that_samples() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    arrays = {"temperature": torch.tensor([0.0, 5.0]), "keys": torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)}
    assert sampling.pick(logits, arrays)[0] == logits[0].argmax()
    assert sampling.pick(logits, {}).tolist() == logits.argmax(-1).tolist()


# ---- the engine, on every device ----

REQUESTS = [
    Request(f"r{i}", [(3 * i + k) % VOCAB for k in range(4 + 7 * i)], max_tokens=6 + 3 * i, temperature=0.8 * (i % 2), seed=i)
    for i in range(7)
]


def scheduler(eos: Any = ()) -> SlotScheduler:
    return SlotScheduler(REQUESTS, slots=SLOTS, eos=eos, max_len=MAX_LEN)


@pytest.fixture(scope="module")
def alone(network: llama.Llama) -> dict[str, tuple[int, ...]]:
    """Each request in a model of its own."""
    answers = {}
    for request in REQUESTS:
        plans, engine = SlotScheduler([request], slots=1), CausalLM("nowhere", slots=1, max_len=MAX_LEN)
        engine.build = lambda device: SlotModel(network, 1, MAX_LEN)
        direct(plans, engine, 1)
        answers[request.id] = plans.outputs[request.id].tokens
    return answers


def tokens_of(plans: SlotScheduler) -> dict[str, tuple[int, ...]]:
    return {key: output.tokens for key, output in plans.outputs.items()}


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_requests_that_share_a_device_get_what_they_get_alone(tiny: Path, alone: dict[str, tuple[int, ...]], depth: int) -> None:
    plans = scheduler()
    direct(plans, CausalLM(tiny, slots=SLOTS, max_len=MAX_LEN), depth)
    assert tokens_of(plans) == alone


@pytest.mark.parametrize(
    ("backend", "options"),
    [("thread", {}), ("cpu", {}), ("sim", {"prices": PRICES, "execute": True}), *EMULATED],
    ids=["thread", "cpu", "sim", *(name for name, _ in EMULATED)],
)
def test_every_backend_driver_and_depth_gives_the_same_outputs(
    tiny: Path, alone: dict[str, tuple[int, ...]], backend: str, options: Any
) -> None:
    eos = {alone["r6"][5]}
    oracle = scheduler(eos)
    direct(oracle, CausalLM(tiny, slots=SLOTS, max_len=MAX_LEN), 1)
    with ovsdk.open_backend(backend, **options) as device:
        for driver, depth in (("inline", 1), ("inline", 2), ("threads", 2), ("inline", 4)):
            plans = scheduler(eos)
            ovsdk.run(plans, CausalLM(tiny, slots=SLOTS, max_len=MAX_LEN), device, depth=depth, driver=driver)
            assert plans.outputs == oracle.outputs
            assert (plans.overruns > 0) is (depth > 1)


class Late(SlotModel):
    """Scatters a step's tokens only when the next has gathered: future tokens one step old."""

    def decode(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        before = self.tokens.clone()
        out = super().decode(*args, **kwargs)
        self.tokens, self.late = getattr(self, "late", before), self.tokens
        return out


class Everywhere(SlotModel):
    """Scatters the rows that are not live, too."""

    def decode(self, positions: Any, live: Any, prefix: int, sampling: Any) -> dict[str, Any]:
        return super().decode(positions, numpy.ones_like(live), prefix, sampling)


class Unmasked(SlotModel):
    """Reads the whole cache, whatever its former owners left there: positions are those of the longest row."""

    def decode(self, positions: Any, live: Any, prefix: int, sampling: Any) -> dict[str, Any]:
        return super().decode(numpy.where(live, positions.max(), 0), live, prefix, sampling)


@pytest.mark.parametrize("model", [SlotModel, Late, Everywhere, Unmasked])
def test_wrong_devices_are_caught(network: llama.Llama, alone: dict[str, tuple[int, ...]], model: type[SlotModel]) -> None:
    plans, engine = SlotScheduler(REQUESTS, slots=SLOTS, prefills=2), CausalLM("nowhere", slots=SLOTS, max_len=MAX_LEN)
    engine.build = lambda device: model(network, SLOTS, MAX_LEN)
    direct(plans, engine, 2)
    assert (tokens_of(plans) == alone) is (model is SlotModel)


# ---- folders that hold no such model ----


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; this network computes only 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"factor": 2}}, "rope_scaling is"),
        ({"num_hidden_layers": 4}, "no 'model.layers.3.input_layernorm.weight': not a whole Llama"),
        ({"hidden_size": None, "head_dim": None}, "does not describe a Llama"),
    ],
)
def test_another_kind_of_model_is_refused(tiny: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    shutil.copy(tiny / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**NUMBERS, **changes}))
    with pytest.raises(ConfigError, match=message):
        llama.load_llama(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a model folder"):
        llama.load_llama(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not a model folder"):
        llama.load_llama(tmp_path)


def test_weights_that_are_cut_short_are_refused(tiny: Path, tmp_path: Path) -> None:
    shutil.copy(tiny / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(ConfigError, match="weights cannot be read"):
        llama.load_llama(tmp_path)


def test_an_unknown_dtype_and_too_many_positions_are_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown dtype 'bfloat' \(did you mean 'bfloat16'\?\)"):
        llama.load_llama(tiny, dtype="bfloat")
    with pytest.raises(ConfigError, match=r"513 tokens.*max_position_embeddings is 512"):
        build(tiny, 1, 513, "float32", "cpu")


def test_a_load_that_fails_says_why_on_every_device(tmp_path: Path) -> None:
    for backend in ("thread", "cpu"):
        with ovsdk.open_backend(backend) as device, pytest.raises(ConfigError, match="is not a model folder"):
            ovsdk.run(SlotScheduler([Request(0, (1,))]), CausalLM(tmp_path), device)
