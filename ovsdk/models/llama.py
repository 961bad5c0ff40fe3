"""The network: a Llama in torch, weights in, logits out. It knows no cache, no slot, no batch: `attend` does.

Equal to transformers' LlamaForCausalLM in float32 to rounding. A layer's projections that read the same activations
are one matrix (q, k, v; gate, up): fewer launches, the same numbers. Runs on any torch device. Matrices are kept as
[in, out]: at batch 8 in float32 on one x86 core a product then takes three quarters of the time of one with [out, in].
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from ..errors import ConfigError, refuse

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q[B, T, heads, d], k[B, T, kv_heads, d], v[B, T, kv_heads, d]) -> [B, T, heads * d]"""

_REQUIRED = {
    "model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_scaling": None, "rope_type": "default",
}  # fmt: skip
_NAMES = {"kv_heads": "num_key_value_heads", "heads": "num_attention_heads", "layers": "num_hidden_layers", "eps": "rms_norm_eps"}


@attrs.frozen(kw_only=True)
class Config:
    """The numbers of a Llama's `config.json` that the computation needs."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    tie_word_embeddings: bool
    max_position_embeddings: int


def read_config(folder: Path) -> Config:
    """The Config of a Hugging Face folder. Raises ConfigError for another kind of model, or if there is no such file."""
    try:
        raw: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not a model folder (config.json, *.safetensors): {error}") from error
    rope = raw.get("rope_parameters") or {}
    raw = {"rope_theta": 10000.0, "tie_word_embeddings": False, **raw, **rope}
    raw.setdefault("num_key_value_heads", raw.get("num_attention_heads"))
    for key, allowed in _REQUIRED.items():
        if raw.get(key, allowed) != allowed:
            raise ConfigError(f"{folder}/config.json: {key} is {raw[key]!r}; this network computes only {allowed!r}")
    try:
        raw["head_dim"] = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
        return Config(**{field.name: raw[_NAMES.get(field.name, field.name)] for field in attrs.fields(Config)})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{folder}/config.json does not describe a Llama: {error!r}") from error


class Layer(NamedTuple):
    """Weights of one layer."""

    norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Llama:
    """`forward(tokens[B, T], positions[B, T], attend)` gives the float32 logits [B, vocab] after each row's last token."""

    def __init__(self, config: Config, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = _matrix(self.embedding if config.tie_word_embeddings else weights["lm_head.weight"])
        self.norm = weights["model.norm.weight"]
        self.layers = [_layer(weights, f"model.layers.{i}.") for i in range(config.layers)]
        self.cos, self.sin = _rope(config, self.embedding)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """int64 in; float32 out. `attend` stores k and v of its layer and returns what each token reads."""
        c = self.config
        x = embedding(tokens, self.embedding)
        cos, sin = self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)
        for i, layer in enumerate(self.layers):
            qkv = (self._norm(x, layer.norm) @ layer.qkv).view(*tokens.shape, -1, c.head_dim)
            qk, v = torch.split(qkv, [c.heads + c.kv_heads, c.kv_heads], dim=-2)
            q, k = torch.split(_rotate(qk, cos, sin), [c.heads, c.kv_heads], dim=-2)
            x = x + attend(i, q, k, v) @ layer.out
            gate, up = (self._norm(x, layer.mlp_norm) @ layer.gate_up).chunk(2, dim=-1)
            x = x + (silu(gate) * up) @ layer.down
        return (self._norm(x[:, -1], self.norm) @ self.head).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self.config.eps)


def load_llama(folder: str | Path, device: str = "cpu", dtype: str = "float32") -> Llama:
    """The network of a Hugging Face folder (config.json and *.safetensors), its weights on `device` in `dtype`.

    Raises ConfigError for an unknown dtype, another kind of model, or weights that are missing.
    """
    folder = Path(folder)
    if dtype not in DTYPES:
        refuse("dtype", dtype, DTYPES)
    config = read_config(folder)
    weights: dict[str, Tensor] = {}
    try:
        for file in sorted(folder.glob("*.safetensors")):
            weights.update((name, tensor.to(device, DTYPES[dtype])) for name, tensor in load_file(file).items())
        return Llama(config, weights)
    except SafetensorError as error:
        raise ConfigError(f"{folder}: weights cannot be read: {error}; remove the folder and get it again") from error
    except KeyError as missing:
        raise ConfigError(f"{folder}/*.safetensors hold {len(weights)} tensors but no {missing}: not a whole Llama") from missing


def _layer(weights: Mapping[str, Tensor], prefix: str) -> Layer:
    def matrix(*names: str) -> Tensor:
        return _matrix(*(weights[f"{prefix}{name}.weight"] for name in names))

    return Layer(
        norm=weights[f"{prefix}input_layernorm.weight"],
        qkv=matrix("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=matrix("self_attn.o_proj"),
        mlp_norm=weights[f"{prefix}post_attention_layernorm.weight"],
        gate_up=matrix("mlp.gate_proj", "mlp.up_proj"),
        down=matrix("mlp.down_proj"),
    )


def _matrix(*matrices: Tensor) -> Tensor:
    """[out, in] matrices, as files have them, side by side as one [in, out]."""
    return torch.cat([matrix.t() for matrix in matrices], dim=1).contiguous()


def _rope(config: Config, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, head_dim] of rotary embedding (Su et al., 2021), in float32 and then rounded as the weights are.

    The sine of the first half carries the minus of "rotate half", so that rotation is two products and a roll.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), 1.0 / config.rope_theta**half)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(like), torch.cat((-sin, sin), -1).to(like)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin
