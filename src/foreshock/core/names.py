"""Signal names with their units, series names, and module groups.

A component that measures something new declares its own name and unit; the
names below are those which the built-in detectors, causes and readers share.
"""

import re
from typing import NamedTuple

from foreshock.core.errors import ConfigError

GLOBAL = "global"
"""The scope of a quantity that belongs to the whole run."""

_SIGNAL = re.compile(r"[a-z][a-z0-9_]*\Z")


class SignalName(NamedTuple):
    """A signal's name, its unit ("1" for a pure ratio) and what it says."""

    name: str
    unit: str
    meaning: str


LOSS = SignalName("loss", "nats", "training loss of the step, mean over micro-steps")
LOSS_SMOOTHED = SignalName("loss_smoothed", "nats", "exponential moving average of the loss")
GRAD_NORM = SignalName("grad_norm", "1", "L2 norm of the gradient before clipping")
NUM_NONFINITE_GRADS = SignalName(
    "num_nonfinite_grads", "tensors", "gradient tensors that hold a NaN or an Inf"
)
ACTIVATION_NORM = SignalName(
    "activation_norm", "1", "root mean square of what enters the last norm layer"
)
PARAM_NORM = SignalName("param_norm", "1", "L2 norm of the parameters")
UPDATE_RATIO = SignalName(
    "update_ratio", "1", "L2 norm of the update over L2 norm of the parameters"
)
LR = SignalName("lr", "1", "learning rate that the update used")
LOSS_SCALE = SignalName("loss_scale", "1", "factor on the loss under fp16")
CLIP_SHARE = SignalName("clip_share", "1", "share of the gradient norm that clipping removed")

STANDARD: tuple[SignalName, ...] = (
    LOSS,
    LOSS_SMOOTHED,
    GRAD_NORM,
    NUM_NONFINITE_GRADS,
    ACTIVATION_NORM,
    PARAM_NORM,
    UPDATE_RATIO,
    LR,
    LOSS_SCALE,
    CLIP_SHARE,
)


def series_name(signal: str, scope: str = GLOBAL) -> str:
    """Return `signal/scope`, the name of one series.

    Raises:
        ConfigError: the signal is not lower_snake_case, or the scope is empty.

    >>> series_name("grad_norm", "blocks.3.attn.qkv")
    'grad_norm/blocks.3.attn.qkv'
    """
    if not _SIGNAL.match(signal):
        raise ConfigError(
            f"signal name {signal!r} is not allowed; use lower_snake_case, e.g. 'grad_norm'"
        )
    if not scope:
        raise ConfigError(f"signal {signal!r} has an empty scope; use {GLOBAL!r} or a module path")
    return f"{signal}/{scope}"


def split_series(series: str) -> tuple[str, str]:
    """Undo `series_name`; a name without a scope belongs to the whole run.

    >>> split_series("grad_norm/blocks.3.attn"), split_series("loss")
    (('grad_norm', 'blocks.3.attn'), ('loss', 'global'))
    """
    signal, _, scope = series.partition("/")
    return signal, scope or GLOBAL


def module_group(parameter_path: str) -> str:
    """Return the module group that a parameter is counted in.

    A parameter inside a numbered block belongs to the block's direct child
    (attention, feed-forward, norm); every other one to its top-level module, or
    to the module that holds it if wrappers come first.

    >>> module_group("blocks.3.attn.qkv.weight")
    'blocks.3.attn'
    >>> module_group("transformer.h.11.mlp.c_fc.bias")
    'transformer.h.11.mlp'
    >>> module_group("embed.weight"), module_group("weight")
    ('embed', 'weight')
    """
    parts = parameter_path.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: min(place + 2, max(len(parts) - 1, 1))])
    return ".".join(parts[:-1]) or parts[0]
