"""Tensors in safetensors files, and a digest of them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from steadygrad.files import RunError


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a dict of tensors that share no memory, as safetensors needs: tied weights are copied for each name."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for key, value in tensors.items():
        value = value.detach().contiguous()
        found[key] = value.clone() if value.numel() and value.data_ptr() in places else value
        places.add(value.data_ptr())
    return found


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file, two dicts. Raise RunError if missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise RunError(f"{path} is truncated or altered: {error}") from None


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return a hash, 32 hexadecimal digits, of a text and of the names, dtypes, shapes and values of tensors.

    ``tensors`` is a dict by name. Its order does not matter.
    """
    sum = hashlib.blake2b(text.encode(), digest_size=16)
    for key in sorted(tensors):
        tensor = tensors[key].detach().cpu().contiguous()
        sum.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sum.update(tensor.flatten().view(torch.uint8).numpy().data)
    return sum.hexdigest()
