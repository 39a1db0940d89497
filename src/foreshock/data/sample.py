"""Reads tokens and text out of whatever a dataset yields."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PAIR = 2


def tokens_of(sample: Any) -> NDArray[np.integer] | None:
    """Return a sample's tokens `[T]`, or None where none can be recognised.

    Recognised are one-dimensional integer arrays and tensors and lists of integers; text
    (its code points) and bytes (their values); a tuple or list of these, such as (x, y), by
    its first element; and a mapping by its `input_ids`, of which only the positions with a
    non-zero `attention_mask` count, where there is one of the same shape.

    >>> tokens_of(([5, 6, 7], [6, 7, 8])).tolist()
    [5, 6, 7]
    >>> tokens_of({"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}).tolist()
    [5, 6]
    >>> tokens_of("hé").tolist(), tokens_of(b"hi").tolist()
    ([104, 233], [104, 105])
    >>> tokens_of(0.5) is None
    True
    """
    match sample:
        case str():
            array = np.frombuffer(sample.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        case bytes() | bytearray():
            array = np.frombuffer(bytes(sample), dtype=np.uint8)
        case Mapping():
            array = _unmasked(tokens_of(sample.get("input_ids")), sample.get("attention_mask"))
        case tuple() | list() if all(isinstance(each, int | np.integer) for each in sample):
            array = np.array(sample, dtype=np.int64)
        case tuple() | list():
            array = tokens_of(sample[0])
        case _:
            array = _array(sample)
    if array is None or array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        return None
    return array


def labels_of(sample: Any) -> NDArray[np.integer] | None:
    """Return a sample's labels `[T]`, or None where none can be recognised.

    Recognised are a mapping's `labels`, of which only the positions with a non-zero
    `attention_mask` count, and the second of a pair of which both are tokens of one length. A
    mapping without labels whose attention mask is zero throughout has none, which is not None.

    >>> labels_of({"input_ids": [5, 6, 0], "labels": [-100, 6, 0], "attention_mask": [1, 1, 0]})
    array([-100,    6])
    >>> labels_of({"input_ids": [5, 6], "attention_mask": [0, 0]}).tolist()
    []
    >>> labels_of(([5, 6], [6, 7])).tolist(), labels_of(([5, 6], 1)), labels_of([5, 6])
    ([6, 7], None, None)
    """
    if isinstance(sample, Mapping):
        labels = sample.get("labels")
        mask = _array(sample.get("attention_mask"))
        if labels is None and mask is not None and mask.size and not mask.any():
            return np.zeros(0, np.int64)
        found = None if labels is None else tokens_of(labels)
        return _unmasked(found, sample.get("attention_mask"))
    if isinstance(sample, tuple | list) and len(sample) == _PAIR and _are_sequences(sample):
        tokens, labels = map(tokens_of, sample)
        if tokens is not None and labels is not None and len(tokens) == len(labels):
            return labels
    return None


def text_in(sample: Any) -> str | None:
    """Return a sample's text, or None: text itself, bytes as UTF-8, or a mapping's `text`.

    >>> text_in({"text": "hi"}), text_in(b"hi"), text_in([104, 105])
    ('hi', 'hi', None)
    """
    if isinstance(sample, Mapping):
        sample = sample.get("text")
    if isinstance(sample, bytes | bytearray):
        return sample.decode(errors="replace")
    return sample if isinstance(sample, str) else None


def _are_sequences(pair: Any) -> bool:
    return not any(isinstance(one, int | np.integer | str | bytes | Mapping) for one in pair)


def _unmasked(tokens: NDArray[Any] | None, attention_mask: Any) -> NDArray[Any] | None:
    mask = _array(attention_mask)
    if tokens is None or mask is None or mask.shape != tokens.shape:
        return tokens
    return tokens[mask != 0]


def _array(value: Any) -> NDArray[Any] | None:
    if not (hasattr(value, "__array__") or isinstance(value, list)):
        return None
    try:
        detach = getattr(value, "detach", None)  # a tensor's, which may lie on a device
        return np.asarray(value if detach is None else detach().cpu())
    except TypeError:  # a tensor of a type that NumPy lacks, such as bfloat16: not tokens
        return None
