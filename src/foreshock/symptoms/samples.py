"""What stands out in the samples of the episode, and whether few of them carry its loss."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from foreshock.core.case import BatchFinding, Case
from foreshock.core.looking import graded, past_of
from foreshock.core.names import LOSS, LOSS_LARGEST_SAMPLE, LOSS_SAMPLE_STD, series_name
from foreshock.core.standing import finite_in, reading_at
from foreshock.core.symptom import Look, Symptom

_FACTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "samples_repeat": ("repetition",),
        "samples_alike": ("alike",),
        "new_source": ("source",),
        "samples_seen_before": ("seen_before",),
        "labels_masked": ("labels_masked",),
    }
)
"""By symptom, the facts of `BatchFinding` that are it."""
_MOST_STRENGTH = 2.0
_LEAST_SURE = 0.25
_SAYS_NOTHING = 0.45
"""Degree at which who expects it in nine episodes of ten gains as much by its presence as they
lose by its absence."""


@dataclass(frozen=True, kw_only=True)
class Samples(Look):
    """What is known of the samples that were trained since the onset.

    `samples_differ`: anything at all stands out in them, by the strength of what does.
    `samples_repeat`: n-grams back to back. `samples_alike`: copies of each other, or of one source
    where there were several. `new_source`, `samples_seen_before`, `labels_masked`: as named. Of
    few samples that show nothing the answer lies between a no and what says little: how much so
    few can show is the strength of that finding, which is negative. Nothing is told where the
    samples could not be looked at, or were far too few.

    `few_samples_carry_the_loss`: where the loss is highest since the onset, by how much the
    largest loss of a sample rose and how much they spread says what share of the samples it
    takes. Only where the loss has risen.

    Usual: data is behind a fifth of the causes, and one in four episodes begins by chance with
    samples that stand out a little (25 %). Each single fact is that of one or two causes. A
    burst on few samples is what most benign outliers are, too (25 %).

    Args:
        few: share of the samples that is a clear yes; half of them are a clear no.
        z: robust deviations of the loss from which it has risen.

    No source for the numbers: our choice, because of k odd ones in B samples that all lie as
    far out the mean moves by k/B of it and the spread by the root of (1 - k/B) k/B.
    """

    name: ClassVar[str] = "samples"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "samples_differ": 0.05,
            "samples_repeat": 0.03,
            "samples_alike": 0.03,
            "new_source": 0.03,
            "samples_seen_before": 0.02,
            "labels_masked": 0.02,
            "few_samples_carry_the_loss": 0.15,
        }
    )
    few: float = 0.15
    z: float = 4.0

    def look(self, case: Case) -> Iterator[Symptom]:
        if case.batch_findings is not None:
            yield from self._of_findings(case.batch_findings)
        yield from self._few(case)

    def _of_findings(self, findings: Sequence[BatchFinding]) -> Iterator[Symptom]:
        positive = [one for one in findings if one.strength > 0]
        # Few samples say little: with strength 0 nothing, with the most that they were looked at.
        weak = [one for one in findings if one.strength <= 0]
        sure = min(1.0, -weak[0].strength / _MOST_STRENGTH) if weak else 1.0
        said = weak[0].statement if weak else "the samples look like those before them"
        if positive:
            strongest = sorted(positive, key=lambda one: -one.strength)
            yield Symptom(
                name="samples_differ",
                degree=min(1.0, sum(one.strength for one in positive) / _MOST_STRENGTH),
                statement="; ".join(one.statement for one in strongest[:3]),
            )
        elif sure >= _LEAST_SURE:
            yield self._absent("samples_differ", said, sure)
        for symptom, facts in _FACTS.items():
            mine = [one for one in positive if one.fact in facts]
            if mine:
                degree = min(1.0, max(one.strength for one in mine) / _MOST_STRENGTH)
                statement = "; ".join(one.statement for one in mine[:3])
                yield Symptom(name=symptom, degree=degree, statement=statement)
            elif sure >= _LEAST_SURE and (not positive or any(one.fact for one in positive)):
                what = symptom.replace("_", " ")
                yield self._absent(symptom, f"{what}: not among what was looked at", sure)

    def _absent(self, symptom: str, said: str, sure: float) -> Symptom:
        """No, as far as it is sure."""
        return Symptom(name=symptom, degree=_SAYS_NOTHING * (1 - sure), statement=said)

    def _few(self, case: Case) -> Iterator[Symptom]:
        loss = series_name(LOSS.name)
        past = past_of(case, loss)
        steps, values = finite_in(case, loss, case.onset_step)
        if past is None or not len(steps):
            return
        at = int(np.argmax(values))
        step, value = int(steps[at]), float(values[at])
        rise = value - past.median
        if past.z_of(value) < self.z:
            return
        takes: list[float] = []
        names = [series_name(LOSS_LARGEST_SAMPLE.name), series_name(LOSS_SAMPLE_STD.name)]
        for name, is_std in zip(names, (False, True), strict=True):
            usual, now = past_of(case, name), finite_in(case, name, step, step)[1]
            if usual is None or not len(now):
                continue
            if is_std:
                odd = max(0.0, float(now[0]) ** 2 - usual.median**2) / rise**2
                takes.append(1 / (1 + odd))
            else:
                takes.append(min(1.0, rise / max(float(now[0]) - usual.median, 1e-12)))
                if now[0] <= usual.median:
                    takes[-1] = 1.0
        if not takes:
            return
        share = max(takes)  # the more cautious of the two
        yield Symptom(
            name="few_samples_carry_the_loss",
            degree=graded(share, 0.5, self.few),
            statement=f"at step {step} the loss stood {rise:.3g} above its median, which takes "
            f"about {share:.0%} of the samples, by the largest loss of one and their spread",
            readings=tuple(one for name in (loss, *names) for one in reading_at(case, name, step)),
        )
