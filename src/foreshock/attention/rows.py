"""Single rows of attention logits, computed again: exact maxima, samples, entropy."""

import math

import torch
from torch import Tensor

from foreshock.attention.call import Call

_NARROW = (torch.float16, torch.bfloat16)


def widened(tensor: Tensor) -> Tensor:
    """At least fp32, in which products are as exact as inside the kernels."""
    return tensor.float() if tensor.dtype in _NARROW else tensor


def sampled_rows(num_rows: int, wanted: int) -> slice:
    """At most `wanted` rows, evenly spaced; the last one, which sees most keys, is among them.

    >>> list(range(10))[sampled_rows(10, 3)]
    [1, 5, 9]
    """
    step = max(1, -(-num_rows // max(1, wanted)))
    return slice((num_rows - 1) % step if num_rows else 0, num_rows, step)


def with_heads(tensor: Tensor, heads: int | None) -> Tensor:
    """View `[.., T, X]` as `[B, H, T, X]`.

    Four dimensions are taken as they are, of more the third last is the heads. Three are
    `[B * H, T, X]` if the number of heads is known and divides, else one head.
    """
    if tensor.ndim == 4:
        return tensor
    if tensor.ndim == 3 and heads is not None and tensor.shape[0] % heads == 0:
        return tensor.unflatten(0, (-1, heads))
    if tensor.ndim <= 3:
        return tensor.reshape(-1, 1, *tensor.shape[-2:])
    return tensor.flatten(0, -4)


def four_dimensional(call: Call, heads: int | None) -> Call:
    """The same call with `[B, H, T, D]` tensors and a mask of `[B, H, T_q, T_k]`, as views."""
    query, key, mask = call.query, call.key, call.mask
    if mask is not None:
        mask = with_heads(mask.expand(*query.shape[:-1], key.shape[-2]), heads)
    return call._replace(query=with_heads(query, heads), key=with_heads(key, heads), mask=mask)


def _masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return logits
    if mask.dtype == torch.bool:
        return logits.masked_fill(~mask, -math.inf)
    return logits + mask


def _scale(call: Call) -> float:
    return call.query.shape[-1] ** -0.5 if call.scale is None else call.scale


def sampled_logits(call: Call, num_rows: int) -> Tensor:
    """Masked logits of evenly spaced rows, `[B, H, n, T_k]`, of a four-dimensional call."""
    batch, heads, length = call.query.shape[:3]
    key_heads, num_keys = call.key.shape[1:3]
    rows = sampled_rows(length, num_rows)
    query = widened(call.query[:, :, rows])
    num = query.shape[2]
    grouped = query.reshape(batch, key_heads, heads // key_heads * num, -1)
    logits = grouped @ widened(call.key).mT * _scale(call)
    logits = logits.view(batch, heads, num, num_keys)
    if call.causal:
        at = torch.arange(length, device=logits.device)[rows]
        later = torch.arange(num_keys, device=logits.device) > at[:, None]
        logits = logits.masked_fill(later, -math.inf)
    return _masked(logits, None if call.mask is None else call.mask[:, :, rows])


def largest(logits: Tensor) -> Tensor:
    """Largest logit of each head, `[B, H, n, T_k] -> [H]`; NaN if any is NaN."""
    return widened(logits.amax((0, 2, 3)))


def exact_rows(call: Call, lse: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Largest logit in the rows with the largest log-sum-exp of each head, and what is left.

    Since no logit of a row exceeds its log-sum-exp, the first is the largest of all rows if it
    is at least the second (to the rounding of both): a certificate. With tied or many equally
    flat rows there may be none; then it is a lower bound.

    Args:
        call: four-dimensional.
        lse: `[B, H, T_q]`.
        num_rows: rows per head.

    Returns:
        `[H]` exact maximum over the chosen rows, -Inf if all of them are masked out, NaN if
        one holds NaN; `[H]` largest log-sum-exp of the other rows, -Inf if there are none.
    """
    batch, heads, length = lse.shape
    key_heads, num_keys = call.key.shape[1:3]
    if call.mask is not None:
        seen = call.mask if call.mask.dtype == torch.bool else call.mask > -math.inf
        lse = lse.masked_fill(~(seen.any(-1) | lse.isnan()), -math.inf)
    flat = lse.transpose(0, 1).reshape(heads, batch * length)
    num = min(num_rows, batch * length)
    values, where = flat.topk(min(num + 1, batch * length), dim=1)
    nothing = torch.full((heads,), -math.inf, dtype=torch.float32, device=lse.device)
    rest = values[:, num].float() if values.shape[1] > num else nothing
    head = torch.arange(heads, device=lse.device)
    key_head = head // (heads // key_heads)
    position = torch.arange(num_keys, device=lse.device)
    maximum = nothing
    for sample, row in zip((where // length).unbind(1), (where % length).unbind(1), strict=True):
        if num == 0:
            break
        num -= 1
        query = widened(call.query[sample, head, row]).unsqueeze(-1)
        logits = (widened(call.key[sample, key_head]) @ query).squeeze(-1) * _scale(call)
        if call.causal:
            logits = logits.masked_fill(position > row[:, None], -math.inf)
        logits = _masked(logits, None if call.mask is None else call.mask[sample, head, row])
        maximum = torch.maximum(maximum, logits.amax(-1).float())
    return maximum, rest


def entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of softmax over keys in nats, summed over rows, and the number of rows.

    `H = log Z - sum p (s - max s)` with Z taken relative to the maximum, so that huge logits
    lose no digits.

    Args:
        logits: `[B, H, n, T_k]`, masked.

    Returns:
        `[H]` sum over the rows that are not masked out (NaN if a row holds NaN or +Inf);
        `[H]` how many there are.
    """
    logits = widened(logits)
    top = logits.amax(-1, keepdim=True)
    masked = top == -math.inf
    below = logits - top.masked_fill(masked, 0.0)
    weights = below.exp()
    total = weights.sum(-1)
    mean = (weights * below.masked_fill(below == -math.inf, 0.0)).sum(-1) / total
    value = (total.log() - mean).masked_fill(masked.squeeze(-1), 0.0)
    return value.sum((0, 2)).float(), (~masked).sum((0, 2, 3)).float()
