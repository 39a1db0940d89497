"""How many query heads an attention module has, read off its attributes."""

from torch import nn

_NAMES = (
    "num_heads",
    "num_attention_heads",
    "n_heads",
    "n_head",
    "heads",
    "nhead",
    "num_q_heads",
    "attention_heads",
)


def num_heads(module: nn.Module) -> int | None:
    """Number of query heads, or None where the module does not say.

    Looks at the module's own attributes, then at those of its `config`, then at the size of
    the query projection over `head_dim`; these are the names that torch, transformers, timm
    and the usual reference models use.

    >>> num_heads(nn.MultiheadAttention(32, 4))
    4
    >>> num_heads(nn.Linear(2, 2)) is None
    True
    """
    for holder in (module, getattr(module, "config", None)):
        for name in _NAMES:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    size = getattr(module, "head_dim", None)
    outputs = getattr(getattr(module, "q_proj", None), "out_features", None)
    if isinstance(size, int) and isinstance(outputs, int) and size > 0 and outputs % size == 0:
        return outputs // size or None
    return None
