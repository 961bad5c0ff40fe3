"""A program: python -m ovsdk.models.convert GGUF FOLDER. Unpacks a GGUF file into a Hugging Face folder, in float32.

In a process of its own, because it is done once: what transformers imports, allocates and sets up goes with it. Each line
on stdout that begins with PHASE names what is being done.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PHASE = "phase: "
PHASES = ("importing transformers", "unpacking the 4-bit weights", "writing the weights", "writing the tokenizer")


def main(source: Path, folder: Path) -> None:
    """Write weights, configuration, tokenizer and chat template. Raises what transformers raises."""
    phases = iter(PHASES)

    def say() -> None:
        print(PHASE + next(phases), flush=True)

    say()
    sys.modules["torch_npu"] = None  # type: ignore[assignment]  # transformers imports it where it is installed; that fails without CANN
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    say()
    unpacked = transformers.GgufConfig(dequantize=True)  # else the model counts as quantised and cannot be saved
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, quantization_config=unpacked)
    say()
    model.save_pretrained(folder)
    say()
    transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
