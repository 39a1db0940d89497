"""The largest attention logit of every layer and head, from what attention keeps anyway."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.anatomy import anatomy_at
from foreshock.attention.tap import AttentionTap
from foreshock.core.names import (
    ATTENTION_ENTROPY,
    MAX_ATTENTION_LOGIT,
    MAX_ATTENTION_LOGIT_FLOOR,
    series_name,
)
from foreshock.core.signal import (
    MISSING,
    Attached,
    Exactness,
    Moment,
    Phase,
    Reduction,
    Signal,
    Site,
    Values,
)


class _AttachedLogits(Attached):
    def __init__(
        self, tap: AttentionTap, names: list[str], site: Site, signal: "AttentionLogitsSignal"
    ) -> None:
        self._tap, self._names, self._clock, self._signal = tap, names, site.clock, signal
        self._heads = [heads or 1 for heads in tap.heads]
        self._shown = [heads if signal.per_head and heads > 1 else 0 for heads in self._heads]
        series = [series_name(MAX_ATTENTION_LOGIT.name)]
        series += [series_name(MAX_ATTENTION_LOGIT.name, name) for name in names]
        series += [series_name(MAX_ATTENTION_LOGIT_FLOOR.name, name) for name in names]
        series += [
            series_name(MAX_ATTENTION_LOGIT.name, f"{name}.heads.{head}")
            for name, shown in zip(names, self._shown, strict=True)
            for head in range(shown)
        ]
        self._width = max(self._heads) if any(self._shown) else 1
        num = len(names)
        kinds = [Reduction.MAX] * (num * (1 + self._width))
        self._every = signal.exact_every_steps
        if self._every:
            series += [series_name(ATTENTION_ENTROPY.name, name) for name in names]
            kinds += [Reduction.SUM] * (2 * num)
            tap.want_exact = self._clock.is_due(self._every)
        self.series = tuple(series)
        self.reductions = kinds

    def measure(self, moment: Moment) -> torch.Tensor:
        bounds = self._tap.read_and_reset()  # [L, H, 2]
        upper = bounds[..., 1]
        # A NaN in any head is the layer's.
        floor = bounds[..., 0].amax(dim=1)
        rows = upper[:, : self._width] if self._width > 1 else upper.amax(dim=1, keepdim=True)
        parts = [floor, rows.reshape(-1)]
        if self._every:
            parts.append(self._exact(floor, rows))
            self._tap.want_exact = (moment.step + 1) % self._every == 0
        return torch.cat(parts)

    def _exact(self, floor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Sums and numbers of entropies of each layer; certified maxima replace the bounds."""
        found = self._tap.read_exact()
        if self._width > 1:
            maximum, sure = found.maximum[:, : self._width], found.certified[:, : self._width]
            rows.copy_(torch.where(sure, maximum, rows))
        else:
            all_sure = (found.certified | (found.maximum == -torch.inf)).all(1, keepdim=True)
            maximum = found.maximum.amax(1, keepdim=True)
            rows.copy_(torch.where(all_sure & (maximum > -torch.inf), maximum, rows))
        floor.copy_(torch.maximum(floor, found.maximum.amax(1)))
        seen = ~found.entropy.isnan()
        total = torch.where(seen, found.entropy, 0.0).sum(1)
        return torch.cat([total, seen.sum(1).to(total)])

    def finish(self, partials: Values, committed: bool) -> Values:
        num = len(self._names)
        floor, rest = partials[:num], partials[num:]
        rows, rest = rest[: num * self._width].reshape(num, self._width), rest[num * self._width :]
        upper = rows.max(axis=1)
        found = [[upper.max()], upper, floor]
        found += [row[:shown] for row, shown in zip(rows, self._shown, strict=True)]
        values = np.concatenate(found)
        values[values == -np.inf] = MISSING
        if self._every:
            total, seen = rest.reshape(2, num)
            entropy = np.where(seen > 0, total / seen, 0.0)
            entropy[seen == 0] = MISSING
            values = np.concatenate([values, entropy])
        return values

    def notes(self) -> dict[str, str]:
        status = zip(self._names, self._tap.status().values(), strict=True)
        return {name: said for name, said in status if said != "log-sum-exp"}

    def forget(self) -> None:
        self._tap.forget()

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.forget()

    def detach(self) -> None:
        self._tap.close()


@dataclass(frozen=True, kw_only=True)
class AttentionLogitsSignal(Signal):
    """Largest attention logit of every layer and head, scaled as the softmax sees it.

    The recorded value is an upper bound, the largest log-sum-exp of a row, which the fused
    kernels keep for their backward pass: tight where it matters (one hot pair: error 0), and
    at most log(number of keys) too high. `max_attention_logit_floor` is the lower bound. For
    nothing but a few numbers a layer. Attention that is written by hand gives the largest
    logit of a sample of rows instead, in both places: then it is a lower bound. Which it is,
    and what cannot be observed, stands in the notes.

    With `exact_every_steps`, in these steps the rows with the largest log-sum-exp are computed
    again: where their maximum is certified to be the largest of all, it replaces the bound,
    and the mean entropy of a sample of rows is recorded. Maximum over micro-steps and ranks.

    Args:
        per_head: a series for each head as well.
        exact_every_steps: steps between exact ones; 0 for none.
        exact_rows: rows a head computed then.
        sampled_rows: rows a sequence and head for samples and entropy.

    Reference: Wortsman et al. 2023, section 3.1.1; Kimi K2 2025 (the failure these warn of).
    """

    name: ClassVar[str] = "attention_logits"
    unit: ClassVar[str] = "nats"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.BOUND
    passes: ClassVar[str] = "none: one number a row of attention that the kernel keeps"
    at_full: ClassVar[Mapping[str, Any]] = {"exact_every_steps": 50}
    per_head: bool = True
    exact_every_steps: int = 0
    exact_rows: int = 8
    sampled_rows: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(0, "exact_every_steps")
        self.require_at_least(1, "exact_rows", "sampled_rows")

    def attach(self, site: Site) -> Attached | None:
        anatomy = anatomy_at(site)
        paths = [part.path for part in anatomy.attention_parts]
        if not paths:
            return None
        modules = [(path, site.model.get_submodule(path)) for path in paths]
        tap = AttentionTap(
            modules,
            site.parameters[0][1].device,
            exact_rows=self.exact_rows if self.exact_every_steps else 0,
            sampled_rows=self.sampled_rows,
        )
        return _AttachedLogits(tap, [anatomy.plain(path) for path in paths], site, self)
