"""Bounds of the largest attention logit from the log-sum-exp of each row.

A row over n keys with logits s has `lse - log n <= max s <= lse`. The upper bound is tight
where it matters: one hot pair gives max s = lse.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from foreshock.attention.call import Call

# The width of the CPU kernel's vectors (AVX-512, fp32). With fewer keys it takes a row whose
# logits are all NaN for one that is masked out, and gives 0 for its log-sum-exp and output.
FEW_KEYS = 16


def per_row(lse: Tensor, num_rows: int) -> Tensor:
    """`[B, H, T_q]` of a kernel's log-sum-exp, which may be padded (`[B, H, 32k]`, with +Inf)
    or have a last dimension of 1 (cuDNN)."""
    return lse.flatten(2)[..., :num_rows]


def with_hidden_nan(lse: Tensor, call: Call) -> Tensor:
    """Put back the NaN of queries and keys that the CPU kernel loses where there are few keys."""
    num_keys = call.key.shape[2]
    if num_keys >= FEW_KEYS or not lse.is_cpu:
        return lse
    seen = call.key[:, :, : lse.shape[2]] if call.causal else call.key
    keys = seen.isnan().flatten(2).any(-1)
    keys = keys.repeat_interleave(lse.shape[1] // keys.shape[1], dim=1).unsqueeze(-1)
    return lse.masked_fill(call.query.isnan().any(-1) | keys, math.nan)


@lru_cache(maxsize=64)
def _log_causal_keys(num_rows: int, num_keys: int, device: torch.device) -> Tensor:
    keys = torch.arange(1, num_rows + 1, device=device, dtype=torch.float32)
    return keys.clamp_(max=max(num_keys, 1)).log_()


def log_keys(num_rows: int, num_keys: int, causal: bool, device: torch.device) -> Tensor | float:
    """Logarithm of the number of keys: `[T_q]` where causal (row i sees min(i + 1, T_k))."""
    if causal:
        return _log_causal_keys(num_rows, num_keys, device)
    return math.log(max(num_keys, 1))


def bounds(lse: Tensor, keys: Tensor | float, *, zero_is_masked: bool = False) -> Tensor:
    """Lower and upper bound of the largest logit of each head, `[..., B, H, T] -> [..., H, 2]`.

    Valid up to the rounding of the log-sum-exp itself: fp32, the kernel's products included;
    for 16-bit inputs the CPU kernel's exponential is off by up to 2e-4, absolute.

    NaN if any row is NaN. Rows that are masked out (-Inf) count in neither bound. Where a mask
    was given, the CPU kernel reports 0 for them instead: with `zero_is_masked` rows of exactly
    0 are left out of the lower bound, and the upper one may read 0 where all logits are
    negative. Both stay valid.

    Args:
        lse: log-sum-exp of each row, natural.
        keys: `log_keys` of these rows; an overestimate where a mask hides more.
    """
    lse = lse.float()
    upper = lse.amax((-3, -1))
    if isinstance(keys, Tensor) or zero_is_masked:
        rows = lse.masked_fill(lse == 0, -math.inf) if zero_is_masked else lse
        lower = (rows - keys).amax((-3, -1))
    else:
        lower = upper - keys
    return torch.stack((lower, upper), -1)
