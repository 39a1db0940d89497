"""A digest of a state that owes nothing to the code under test: every byte and every value."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor


def fingerprint(tree: Any) -> str:
    """SHA-256 over the bytes of every tensor and array and over every value, with their places."""
    sink = hashlib.sha256()
    _feed(sink, tree)
    return sink.hexdigest()


def _feed(sink: Any, tree: Any) -> None:
    match tree:
        case DTensor():
            _feed(sink, tree.full_tensor())
        case torch.Tensor():
            flat = tree.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            sink.update(f"tensor {tree.dtype} {tuple(tree.shape)} ".encode())
            sink.update(flat.numpy().tobytes())
        case np.ndarray():
            sink.update(f"array {tree.dtype} {tree.shape} ".encode() + tree.tobytes())
        case Mapping():
            sink.update(f"map {len(tree)} ".encode())
            for key, value in sorted(tree.items(), key=lambda item: repr(item[0])):
                sink.update(f"{key!r} ".encode())
                _feed(sink, value)
        case list() | tuple():
            sink.update(f"row {len(tree)} ".encode())
            for value in tree:
                _feed(sink, value)
        case _:
            sink.update(f"{type(tree).__name__} {tree!r} ".encode())
