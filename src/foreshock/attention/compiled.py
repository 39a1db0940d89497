"""Attention inside a compiled graph: the kernel's log-sum-exp, recorded by an opaque operator.

A compiled graph keeps no node to read. While it is traced, the call of attention is traced as
it is, under a mode that picks up the log-sum-exp the kernel returns; an operator that compilers
cannot look into then updates the row of this module. Nothing around it fuses differently.

The row is a tensor, not a number: layers that share a compiled graph go on sharing it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from foreshock.attention.call import LogSumExpCapture
from foreshock.attention.logsumexp import bounds, log_keys, per_row
from foreshock.taps import is_paused


def new_row(width: int, device: torch.device) -> Tensor:
    """A row of `[W + 1, 2]`: bounds of each head, then how many calls were measured or not."""
    row = torch.full((width + 1, 2), -math.inf, device=device)
    row[-1] = 0.0
    return row


def fold_heads(values: Tensor, width: int) -> Tensor:
    """Values of each head `[H, 2]`, or their maximum in one row where H exceeds the width."""
    return values if values.shape[0] <= width else values.amax(0, keepdim=True)


@torch.library.custom_op("foreshock::record_logsumexp", mutates_args=("row",))
def record_logsumexp(
    row: Tensor,
    lse: Tensor,
    base: float,
    num_rows: int,
    num_keys: int,
    *,
    causal: bool,
    masked: bool,
) -> None:
    """Raise the bounds in `row` to those of `lse` `[B, H, T]`, a logarithm to `base`."""
    if is_paused():
        return
    lse = per_row(lse, num_rows)
    if base != math.e:
        lse = lse * math.log(base)
    keys = log_keys(num_rows, num_keys, causal, lse.device)
    found = bounds(lse, keys, zero_is_masked=masked and lse.is_cpu).to(row.device)
    found = fold_heads(found, row.shape[0] - 1)
    held = row[: found.shape[0]]
    torch.maximum(held, found, out=held)
    seen = (found[:, 1] != -math.inf).any()
    row[-1] += torch.stack((seen, ~seen))


@torch.library.custom_op("foreshock::record_unmeasured", mutates_args=("row",))
def record_unmeasured(row: Tensor) -> None:
    """Count a call that gives nothing inside a compiled graph."""
    if not is_paused():
        row[-1, 1] += 1


def attend(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Attention as it is, and the log-sum-exp that its kernel returns.

    Where no fused kernel is chosen the second is -Inf everywhere, which records nothing: the
    choice is made after the shapes of the graph are fixed.

    Args:
        rest: mask, dropout, causal, scale, grouped heads.
    """
    mask, dropout, causal, scale, grouped = rest
    with LogSumExpCapture() as capture:
        output = scaled_dot_product_attention(
            query, key, value, mask, dropout, causal, scale=scale, enable_gqa=grouped
        )
    lse = capture.logsumexp
    if lse is None:
        lse = query.new_full(query.shape[:-1], -math.inf, dtype=torch.float32)
    return output, lse.detach()


def in_subgraph() -> bool:
    """Whether dynamo traces the body of an operator such as checkpointing: no modes in there."""
    from torch._dynamo.symbolic_convert import InstructionTranslator  # noqa: PLC0415 - slow

    return InstructionTranslator.current_tx().output.current_tracer.parent is not None


def prepare(*frames: Callable[..., Any]) -> None:
    """Make dynamo take `attend` into its graph as it is, and `in_subgraph` at its word.

    Args:
        frames: to be traced only as part of what calls them. Where dynamo does not trace that
            as a whole they run as they are: compiled as frames of their own, a mode's results
            were wrong (torch 2.13).
    """
    from torch._dynamo.eval_frame import skip_code  # noqa: PLC0415 - slow

    torch.compiler.allow_in_graph(attend)
    torch.compiler.assume_constant_result(in_subgraph)
    for frame in frames:
        skip_code(frame.__code__)
