"""Watches the attention modules of a model: logits, entropy, and how far they can be trusted."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from foreshock.attention import compiled, graph
from foreshock.attention.burst import Burst
from foreshock.attention.heads import num_heads
from foreshock.attention.interception import Interception
from foreshock.attention.module_tap import ModuleTap
from foreshock.attention.record import ExactRows, Record


@final
class AttentionTap:
    """Bounds of the largest attention logit of every head, from what attention computes anyway.

    Per forward in training mode with gradients enabled (others do not count; one that
    checkpointing computes again counts once):

    - a fused kernel (`scaled_dot_product_attention`) keeps the log-sum-exp of each row: lower
      and upper bound for a few tiny operations; exact rows with a certificate while
      `want_exact` is set;
    - hand-written softmax, and `scaled_dot_product_attention` without a fused kernel: the
      largest logit of `sampled_rows` evenly spaced rows of every sequence, a lower bound that
      stands in both places;
    - inside a compiled graph: bounds, where a fused kernel or FlexAttention runs; no rows.

    Values are the maxima over what came in since the last reading. NaN and Inf stay visible.
    Tensors are this rank's own; reducing over ranks (by maximum) is the caller's. Waits for
    the device nowhere but in `status`. Training is unchanged bit by bit.

    Watch before compiling: hooks that come later are not traced. Copies and pickles of the
    model are not watched.

    Args:
        modules: (path, module) of each attention module, in order.
        device: where the values are kept.
        exact_rows: rows a head to compute exactly while `want_exact` is set.
        sampled_rows: rows a sequence and head for samples and entropy.

    Attributes:
        paths: of the modules.
        heads: number of query heads of each; None where the module does not say: then
            the maximum over heads stands in column 0. A rank that holds fewer heads fills the
            first columns.
        want_exact: whether forwards now also compute exact rows and entropies.
    """

    def __init__(
        self,
        modules: Sequence[tuple[str, nn.Module]],
        device: torch.device,
        *,
        exact_rows: int = 0,
        sampled_rows: int = 8,
    ) -> None:
        compiled.prepare(*ModuleTap.HOT, *Interception.HOT, *Record.HOT, *Burst.HOT, *graph.HOT)
        self.paths = tuple(path for path, _ in modules)
        self.heads = tuple(num_heads(module) for _, module in modules)
        self._record = Record([heads or 1 for heads in self.heads], torch.device(device))
        self._burst = Burst()
        self._taps = [
            ModuleTap(
                module,
                place,
                heads,
                self._record,
                self._burst,
                exact_rows=exact_rows,
                sampled_rows=max(1, sampled_rows),
            )
            for place, ((_, module), heads) in enumerate(zip(modules, self.heads, strict=True))
        ]
        self._want_exact = False

    @property
    def want_exact(self) -> bool:
        """Whether forwards now also compute exact rows and entropies."""
        return self._want_exact

    @want_exact.setter
    def want_exact(self, wanted: bool) -> None:
        self._want_exact = wanted
        for tap in self._taps:
            tap.want_exact = wanted

    @property
    def num_measured(self) -> tuple[int, ...]:
        """Calls of attention measured in each module so far, outside compiled graphs."""
        return tuple(tap.num_measured for tap in self._taps)

    def read_and_reset(self) -> Tensor:
        """`[L, H, 2]`: lower and upper bounds since the last reading; -Inf where nothing was seen.

        H is the largest number of heads; columns that a layer does not have stay -Inf.
        """
        self._burst.release()
        return self._record.take_bounds()

    @torch.no_grad()
    def read_exact(self) -> ExactRows:
        """Exact rows and entropies since the last reading, of forwards with `want_exact`."""
        self._burst.release()
        return self._record.take_rows()

    @torch.no_grad()
    def forget(self) -> None:
        """Drop what was measured since the last reading: a step was abandoned."""
        self._burst.drop()
        self._record.forget()

    def status(self) -> dict[str, str]:
        """How each module is observed: "log-sum-exp", "sampled", or "not observed: reason".

        Waits for the device where modules are compiled.
        """
        return {path: tap.status() for path, tap in zip(self.paths, self._taps, strict=True)}

    def close(self) -> None:
        """Leave the modules exactly as they were; compiled ones are compiled again."""
        self._burst.drop()
        for tap in self._taps:
            tap.close()

    def __enter__(self) -> "AttentionTap":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
