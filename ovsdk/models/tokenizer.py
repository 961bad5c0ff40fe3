"""Text to token ids and back, and chats to prompts, from the files of a Hugging Face folder. Needs `tokenizers` and `jinja2`.

The chat template is rendered as transformers renders it, in a sandbox: it is a program that came with the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import ConfigError


class Tokenizer:
    """`encode`, `decode`, `chat`; `eos` are the token ids that end an answer.

    Raises ConfigError if the folder or a package is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        try:
            self._tokenizer: Any = import_module("tokenizers").Tokenizer.from_str(_read(folder, "tokenizer.json"))
            environment = import_module("jinja2.sandbox").ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        except ImportError as error:
            raise ConfigError(f"{error.name} is not installed; do: pip install 'ovsdk[llm]'") from error
        self._template = environment.from_string(_read(folder, "chat_template.jinja"))
        eos = json.loads(_read(folder, "config.json"))["eos_token_id"]
        self.eos: frozenset[int] = frozenset(eos if isinstance(eos, list) else [eos])

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text; special tokens may be written out in it, none is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out; an incomplete character becomes U+FFFD."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def chat(self, messages: str | Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The prompt that asks for an answer to `messages`: maps with `role` and `content`, or one user message as a str."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.encode(self._template.render(messages=messages, add_generation_prompt=True))


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} has no readable {name}, which a tokenizer is made of: {error}") from error
