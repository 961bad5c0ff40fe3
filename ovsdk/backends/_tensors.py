"""Torch tensors on the wire between processes: dense CPU tensors of every dtype travel as one buffer each.

Imported only once somebody sends a tensor. A tensor arrives contiguous, without history (`requires_grad` is kept) and
owns its memory. Other layouts, devices and subclasses are left to torch's own pickling.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch


def reduce(tensor: torch.Tensor) -> Any:
    """Pickle's reduction of `tensor`: `restore` and its arguments; NotImplemented for what torch has to pickle itself."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.is_nested:
        return NotImplemented
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    octets: Any = whole.reshape(-1).view(torch.uint8).numpy()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return restore, (pickle.PickleBuffer(octets), dtype, tuple(tensor.shape), tensor.requires_grad)


def restore(octets: bytearray, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    """The tensor of that dtype and shape over `octets`, which it keeps as its memory."""
    kind = getattr(torch, dtype)
    tensor = torch.frombuffer(octets, dtype=kind).reshape(shape) if len(octets) else torch.empty(shape, dtype=kind)
    return tensor.requires_grad_(requires_grad)
