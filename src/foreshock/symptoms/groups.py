"""Which part of the model moved: the embedding, one part alone, the lower layers."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from foreshock.core.case import Case
from foreshock.core.looking import Past, graded, graded_ratio, past_of, scopes_of
from foreshock.core.names import (
    GRAD_NORM,
    GRAD_SHARE,
    PARAM_NORM,
    UPDATE_RATIO,
    series_name,
    split_series,
)
from foreshock.core.scopes import block_of, role_of
from foreshock.core.standing import finite_in, reading_at
from foreshock.core.stats import MAD_TO_SD
from foreshock.core.symptom import Look, Symptom

_LEAST_GROUPS = 4
_REACH_STEPS = 20
"""After the onset: later some part leaves its range by chance."""
_LARGEST = 20
"""Steps with the embedding's largest shares, in which those of the others are looked at."""


@dataclass(frozen=True, kw_only=True)
class Groups(Look):
    """What the series of module groups tell together.

    `embedding_gradient_dominates`: in two steps since the onset the embedding had the largest
    share of the gradient, six tenths or more, and clearly more than usual.
    `one_part_moved`: where groups first left their range (gradient norm and update ratio upwards,
    weight norm either way), few of them did. Not told where none did, as one may move that is
    not measured by group.
    `lower_layers_moved_more`: when the update was largest, its ratio in the lower half of the
    blocks had risen clearly more than in the upper half.

    Usual: one cause is of the embedding, whose share also leads in some data faults (10 %); single
    parts are hit by damaged moments, flipped weights and the embedding's gradient (20 %); lower
    layers lead in growing updates and in gradients below epsilon, and by chance (12 %).

    Args:
        share: of the squared gradient norm, for a clear yes; 0.1 less is a clear no.
        risen: by which it is above its median, for a clear yes; half is a clear no.
        z: robust deviations (of the logarithm, but of a weight norm) of a group that left its
            range, which is also above `ratio` times its median.
        ratio: see `z`. A weight norm needs `z` only.
        few: share of the groups that is a clear yes; half of them are a clear no.
        lower: rise of the lower half over that of the upper, for a clear yes; a third of it
            beyond 1 is a clear no.

    No source: our choice, because shares of groups reach 0.3 above their median now and
    then in healthy runs (measured), and the update of Marin-32B doubled in its lower layers.
    """

    name: ClassVar[str] = "groups"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "embedding_gradient_dominates": 0.1,
            "one_part_moved": 0.4,
            "lower_layers_moved_more": 0.12,
        }
    )
    share: float = 0.6
    risen: float = 0.35
    z: float = 6.0
    ratio: float = 2.5
    few: float = 0.2
    lower: float = 1.6

    def look(self, case: Case) -> Iterator[Symptom]:
        yield from self._embedding(case)
        yield from self._one_part(case)
        yield from self._lower(case)

    def _embedding(self, case: Case) -> Iterator[Symptom]:
        shares = list(scopes_of(case, GRAD_SHARE.name, whole=False))
        best: Symptom | None = None
        for name in shares:
            if role_of(split_series(name)[1], case.facts) != "embedding":
                continue
            past = past_of(case, name)
            steps, values = finite_in(case, name, case.onset_step)
            if past is None or not len(steps):
                continue
            largest = np.argsort(-values, kind="stable")[:_LARGEST].tolist()
            leading = [at for at in largest if self._leads(case, shares, name, int(steps[at]))]
            # One step alone may be noise: the second of those in which it leads counts.
            at = (leading or largest)[min(1, len(leading or largest) - 1)]
            value = float(values[at])
            degree = min(
                graded(value, self.share - 0.1, self.share),
                graded(value - past.median, self.risen / 2, self.risen),
                graded(past.z_of(value), self.z / 2, self.z),
                1.0,
                len(leading) / 2,
            )
            found = Symptom(
                name="embedding_gradient_dominates",
                degree=degree,
                statement=f"{split_series(name)[1]} had {value:.0%} of the squared gradient norm "
                f"at step {int(steps[at])}, usually {past.median:.0%}"
                + ("" if leading else "; another part had more"),
                readings=reading_at(case, name, int(steps[at])),
            )
            if best is None or found.degree > best.degree:
                best = found
        if best is not None:
            yield best

    def _leads(self, case: Case, shares: list[str], name: str, step: int) -> bool:
        values = {one: case.timeline.values(one, step, step) for one in shares}
        own = float(values[name][0])
        return all(float(one[0]) <= own for one in values.values() if len(one))

    def _one_part(self, case: Case) -> Iterator[Symptom]:
        moved: dict[str, dict[str, int]] = {}
        for signal in (GRAD_NORM.name, UPDATE_RATIO.name, PARAM_NORM.name):
            found = {
                name: self._first_out(case, name, past, signal)
                for name in scopes_of(case, signal, whole=False)
                if (past := past_of(case, name)) is not None
            }
            if len(found) >= _LEAST_GROUPS:
                moved[signal] = {name: step for name, step in found.items() if step is not None}
                moved[signal]["of"] = len(found)
        firsts = [step for one in moved.values() for name, step in one.items() if name != "of"]
        if not firsts:
            return
        first = min(firsts)
        # Of several signals that moved in that step, the one that singles out fewest.
        told: list[tuple[float, int, int, list[str]]] = []
        for one in moved.values():
            names = [name for name, step in one.items() if name != "of" and step == first]
            if names:
                told.append((len(names) / one["of"], len(names), one["of"], names))
        share, number, total, names = min(told)
        least = max(self.few, 1.5 / total)
        said = ", ".join(names[:3]) + (", …" if number > 3 else "")
        yield Symptom(
            name="one_part_moved",
            degree=graded(share, max(0.5, least + 0.1), least),
            statement=f"{number} of {total} parts left their range at step {first}, where parts "
            f"first did: {said}",
            readings=tuple(one for name in names[:3] for one in reading_at(case, name, first)),
        )

    def _first_out(self, case: Case, name: str, past: Past, signal: str) -> int | None:
        steps, values = finite_in(case, name, case.onset_step, case.onset_step + _REACH_STEPS)
        if signal == PARAM_NORM.name:
            out = np.abs(past.z(values)) >= self.z
        elif past.median > 0:
            # By logarithms: gradients of small parts vary by factors.
            usual = finite_in(case, name, int(past.steps[0]), int(past.steps[-1]))[1]
            ratios = np.maximum(past.ratio(usual[usual > 0]), 1e-300)
            spread = MAD_TO_SD * float(np.median(np.abs(np.log(ratios))))
            grown = max(self.ratio, math.exp(min(self.z * spread, 100.0)))
            out = past.ratio(values) >= grown
        else:
            return None
        return int(steps[out][0]) if out.any() else None

    def _lower(self, case: Case) -> Iterator[Symptom]:
        peak = case.peak(series_name(UPDATE_RATIO.name))
        if peak is None:
            return
        by_block: dict[int, list[float]] = {}
        for name in scopes_of(case, UPDATE_RATIO.name, whole=False):
            block = block_of(split_series(name)[1])
            jump = case.jump(name, peak.step)
            if block is not None and jump is not None and 0 < jump.ratio < np.inf:
                by_block.setdefault(block, []).append(jump.ratio)
        blocks = sorted(by_block)
        if len(blocks) < 2:
            return
        half = len(blocks) // 2
        low = float(np.median([one for block in blocks[:half] for one in by_block[block]]))
        high = float(np.median([one for block in blocks[-half:] for one in by_block[block]]))
        no = 1 + (self.lower - 1) / 3
        yield Symptom(
            name="lower_layers_moved_more",
            degree=min(graded_ratio(low / high, no, self.lower), graded_ratio(low, no, self.lower)),
            statement=f"at step {peak.step} the update of the lower half of the blocks was "
            f"{low:.3g} times its median, that of the upper half {high:.3g} times",
            readings=peak.readings,
        )
