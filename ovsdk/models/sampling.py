"""From logits to tokens, on the device: greedy, or seeded by (request seed, position) and nothing else.

Noise is a hash of (key, vocabulary index), never the state of a generator: a row draws the same whatever rows are
beside it, in whatever order launches are made, on whatever device. So overlap on and off sample the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

TOP = 5
"""How many of the most likely tokens are reported with their log-probabilities."""


def pick(logits: Tensor, sampling: Mapping[str, Tensor]) -> Tensor:
    """The next token int64[rows] of float32 logits [rows, vocab].

    `sampling` is empty (greedy), or has per row `temperature` float32 (0 is greedy) and `keys` int32 [rows, 2] of
    `causal_lm.noise_key`, and then maybe `top_k` int64 (vocab size = all) and `top_p` float32 (1 = all). Gumbel-max: the argmax of
    logits / temperature + Gumbel noise is a draw from the softmax (Gumbel 1954; Maddison et al. 2014).
    """
    best = logits.argmax(-1)
    if not sampling:
        return best
    temperature = sampling["temperature"]
    scaled = logits / torch.where(temperature > 0, temperature, 1.0).unsqueeze(-1)
    if "top_k" in sampling:
        scaled = _keep_likely(scaled, sampling["top_k"].unsqueeze(-1), sampling["top_p"].unsqueeze(-1))
    drawn = (scaled + _gumbel(sampling["keys"], logits.shape[-1])).argmax(-1)
    return torch.where(temperature > 0, drawn, best)


def report(logits: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """What the host gets of each row: `tokens` int64[rows], their `logprobs` float32[rows], `top_ids` and `top_logprobs` [rows, TOP].

    Log-probabilities are the model's own, before temperature and top-k/top-p.
    """
    logprobs = logits.log_softmax(-1)
    top = logprobs.topk(min(TOP, logits.shape[-1]))
    chosen = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return {"tokens": tokens, "logprobs": chosen, "top_ids": top.indices, "top_logprobs": top.values}


def _keep_likely(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """-inf but for the top_k likeliest tokens, and of those the fewest whose probabilities reach top_p; at least one is kept."""
    ordered = logits.sort(-1, descending=True).values
    rank = torch.arange(logits.shape[-1], device=logits.device)
    ordered = ordered.masked_fill(rank >= top_k, -torch.inf)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability
    # A cumulative sum may round past 1 before the last token, so a top_p of 1 is not compared with it.
    least = ordered.masked_fill((before >= top_p) & (top_p < 1), torch.inf).amin(-1, keepdim=True)
    return logits.masked_fill(logits < least, -torch.inf)


def _gumbel(keys: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise [rows, vocab], a function of (key, vocabulary index)."""
    index = torch.arange(vocab, dtype=torch.int32, device=keys.device)
    bits = _mix(_mix(index * -1640531527 ^ keys[:, :1]) ^ keys[:, 1:])  # -1640531527 = 2**32 / golden ratio, as int32
    # 31 bits, at the middle of their interval: the rare small values, which decide a draw, are the finely spaced floats.
    uniform = ((bits & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return -torch.log(-torch.log1p(-uniform))


def _mix(x: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser (Appleby, public domain), on int32 whose products wrap; `&` makes the shifts logical."""
    x = (x ^ (x >> 16 & 0xFFFF)) * -2048144789
    x = (x ^ (x >> 13 & 0x7FFFF)) * -1028477387
    return x ^ (x >> 16 & 0xFFFF)
