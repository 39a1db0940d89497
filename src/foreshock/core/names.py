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
GRAD_SHARE = SignalName("grad_share", "1", "a group's share of the squared gradient norm")
GRAD_RMS_TO_EPS = SignalName(
    "grad_rms_to_eps", "1", "root mean square of a gradient over Adam's epsilon"
)
GRAD_ABSMAX = SignalName("grad_absmax", "1", "largest magnitude of a gradient entry")
NUM_NONFINITE_ENTRIES = SignalName(
    "num_nonfinite_entries", "entries", "gradient entries that are NaN or Inf"
)
LOSS_LARGEST_SAMPLE = SignalName("loss_largest_sample", "nats", "largest loss of a sample")
LOSS_SAMPLE_STD = SignalName("loss_sample_std", "nats", "standard deviation over samples")
PARAM_GROWTH = SignalName("param_growth", "1", "parameter norm over that at the run's start")
UPDATE_NORM = SignalName("update_norm", "1", "L2 norm of the update")
LOST_UPDATE_SHARE = SignalName(
    "lost_update_share", "1", "share of low-precision weights that rounding kept from moving"
)
FIRST_MOMENT_NORM = SignalName("first_moment_norm", "1", "L2 norm of the first moment")
SECOND_MOMENT_RMS = SignalName("second_moment_rms", "1", "root mean of the second moment")
RMS_T = SignalName("rms_t", "1", "root mean of squared gradient over second moment")
NUM_NONFINITE_MOMENTS = SignalName(
    "num_nonfinite_moments", "tensors", "parameters whose moments hold a NaN or an Inf"
)
NUM_UPDATES = SignalName("num_updates", "updates", "updates that the optimizer has counted")
ACTIVATION_RMS = SignalName("activation_rms", "1", "root mean square of what a block gives")
ACTIVATION_ABSMAX = SignalName("activation_absmax", "1", "largest magnitude in what a block gives")
DEAD_CHANNEL_SHARE = SignalName(
    "dead_channel_share", "1", "share of channels that are zero for every token of a step"
)
SATURATED_CHANNEL_SHARE = SignalName(
    "saturated_channel_share", "1", "share of channels far above the others"
)
MAX_ATTENTION_LOGIT = SignalName("max_attention_logit", "nats", "largest attention logit")
MAX_ATTENTION_LOGIT_FLOOR = SignalName(
    "max_attention_logit_floor", "nats", "what the largest attention logit is at least"
)
ATTENTION_ENTROPY = SignalName("attention_entropy", "nats", "mean entropy of attention rows")
MAX_OUTPUT_LOGIT = SignalName("max_output_logit", "nats", "largest output logit")
LOG_Z = SignalName("log_z", "nats", "mean log-partition function of the prediction")
LOG_Z_ABSMAX = SignalName("log_z_absmax", "nats", "largest magnitude of the log-partition function")
OUTPUT_ENTROPY = SignalName("output_entropy", "nats", "mean entropy of the prediction")
LOSS_SCALE_LOG2 = SignalName("loss_scale_log2", "1", "base-2 logarithm of the loss scale")
OVERFLOW_SHARE = SignalName("overflow_share", "1", "share of recent steps skipped for overflow")
UNDERFLOW_SHARE = SignalName(
    "underflow_share", "1", "share of gradient entries that the loss scale leaves subnormal in fp16"
)
GRAD_ZERO_SHARE = SignalName("grad_zero_share", "1", "share of gradient entries that are zero")
FIRST_MOMENT_NORM_EXACT = SignalName(
    "first_moment_norm_exact", "1", "L2 norm of the first moment, of every entry"
)
SECOND_MOMENT_NORM = SignalName("second_moment_norm", "1", "L2 norm of the second moment")
NUM_NONFINITE_MOMENTS_EXACT = SignalName(
    "num_nonfinite_moments_exact", "tensors", "parameters with a broken moment, of every entry"
)
WEIGHTS_DIGEST = SignalName("weights_digest", "1", "24 bits of a digest of the weights")
OPTIMIZER_DIGEST = SignalName("optimizer_digest", "1", "24 bits of a digest of the moments")
NUM_DESYNCED = SignalName("num_desynced", "tensors", "parameters whose replicas differ")
NUM_CHANGED_SHARDS = SignalName(
    "num_changed_shards", "tensors", "shards that changed between two steps"
)
LOSS_SPREAD = SignalName("loss_spread", "nats", "largest less smallest loss of a rank")
RANK_OF_LARGEST_LOSS = SignalName("rank_of_largest_loss", "1", "rank with the largest loss")

STANDARD: tuple[SignalName, ...] = tuple(
    name for name in tuple(globals().values()) if isinstance(name, SignalName)
)
"""Every name above."""


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
