"""What a trial cost and whether it recovered, from what it recorded: arithmetic alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from foreshock.core.minimal import PALM_BATCHES_SKIPPED, PALM_STEPS_BACK
from foreshock.core.student import student_quantile

STEPS_LOST_BY_PRACTICE: Final = PALM_STEPS_BACK + PALM_BATCHES_SKIPPED[0]
"""PaLM's practice at its cheapest: 100 steps back, 200 batches skipped."""

_TAIL: Final = 0.00135  # three standard deviations, one-sided
_LARGEST_WEIGHT: Final = 10.0
"""Healthy ends of this program have none above 1.4; what stands far out of that was not undone."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Steps that trained in vain.

    Attributes:
        undone: by incident, steps that its rollbacks took back; 0 is none's.
        skipped: steps of the surviving past whose update the gate did not make: their data
            is consumed, and nothing was learned of it.
    """

    undone: Mapping[int, int]
    skipped: int

    @property
    def recomputed(self) -> int:
        """All steps that were undone."""
        return sum(self.undone.values())


def cost_of(records: Iterable[Mapping[str, Any]], executed: Sequence[tuple[int, int]]) -> Cost:
    """Count what was undone and what was skipped.

    Args:
        records: the run's decisions, in order.
        executed: (attempt, step) of every step that trained, in order; those of the anchor too,
            since a rollback may go back behind it.
    """
    rollbacks: list[tuple[int, int, int]] = []  # attempt that began, from which step, incident
    skips: list[tuple[int, int]] = []
    waiting = 0
    for record in records:
        match record["kind"]:
            case "plan":
                waiting = record["incident"] if record["plan"]["target_step"] is not None else 0
            case "attempt_started":
                rollbacks.append((record["attempt"], record["step"], waiting))
                waiting = 0
            case "skip":
                skips.append((record["attempt"], record["step"]))
            case _:
                pass
    undone: dict[int, int] = {}
    lost: set[tuple[int, int]] = set()
    for attempt, step in executed:
        by = next((who for began, to, who in rollbacks if began > attempt and to < step), None)
        if by is not None:
            undone[by] = undone.get(by, 0) + 1
            lost.add((attempt, step))
    trained = set(executed) - lost
    return Cost(undone=undone, skipped=sum(one in trained for one in skips))


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """How healthy runs end that differ only in the data they saw.

    Attributes:
        mean: held-out loss at the end, by anchor.
        bound: by anchor, the highest that still passes for a healthy end.
        spread: standard deviation of an end about the mean of its anchor.
        freedom: degrees of freedom that it is known with.
    """

    mean: Mapping[int, float]
    bound: Mapping[int, float]
    spread: float
    freedom: int


def healthy_ends(ends: Mapping[int, Sequence[float]]) -> Healthy:
    """The bound that a recovered run is held to: three standard deviations, as far as known.

    `bound = mean + t * s * sqrt(1 + 1 / n)`: the upper prediction limit of one more end among n
    of its anchor, with s pooled over anchors and t the quantile of Student's t at the tail of
    three standard deviations, so that few twins give a wider bound, not a luckier one.

    Args:
        ends: by anchor, held-out losses of healthy twins; two or more somewhere.

    Raises:
        ValueError: no anchor has two.
    """
    freedom = sum(len(one) - 1 for one in ends.values())
    if freedom < 1:
        raise ValueError("two healthy ends of one anchor are needed to tell their spread")
    mean = {seed: sum(one) / len(one) for seed, one in ends.items()}
    squares = sum((end - mean[seed]) ** 2 for seed, one in ends.items() for end in one)
    spread = math.sqrt(squares / freedom)
    t = student_quantile(_TAIL, freedom)
    bound = {
        seed: mean[seed] + t * spread * math.sqrt(1 + 1 / len(one)) for seed, one in ends.items()
    }
    return Healthy(mean=mean, bound=bound, spread=spread, freedom=freedom)


def why_not_recovered(trial: Mapping[str, Any], healthy: Healthy) -> list[str]:
    """Each reason for which a trial did not recover; none if it did."""
    reasons: list[str] = []
    if trial["halted"]:
        reasons.append(f"halted: {trial['halted']}")
    elif not trial["ended"]:
        reasons.append(f"stopped at step {trial['last_step']}")
    if not trial["finite"]:
        reasons.append("a weight or a moment is not finite")
    elif trial["largest_weight"] > _LARGEST_WEIGHT:
        reasons.append(f"a weight of {trial['largest_weight']:.3g} is left")
    end, bound = trial["held_out"], healthy.bound[trial["anchor"]]
    if end is None:
        reasons.append("the held-out loss is not finite")
    elif end > bound:
        excess = end - healthy.mean[trial["anchor"]]
        allowed = bound - healthy.mean[trial["anchor"]]
        reasons.append(f"held-out loss {excess:+.4f} against healthy twins; {allowed:.4f} allowed")
    still_open = [str(one["id"]) for one in trial["incidents"] if one["outcome"] is None]
    if still_open and not trial["halted"]:
        reasons.append(f"incident {', '.join(still_open)} was still open at the end")
    return reasons


def samples_lost(trial: Mapping[str, Any], batch_size: int) -> tuple[int, int]:
    """Samples lost to a trial before release and after it.

    Recomputed and skipped steps, a batch each, and what is in quarantine. Samples that were set
    aside after they had trained in an undone step count twice, as with the fixed practice.
    """
    steps = (trial["recomputed_steps"] + trial["skipped_steps"]) * batch_size
    return steps + trial["held_before"], steps + trial["held_after"]


def tokens_lost(
    trials: Sequence[Mapping[str, Any]], *, batch_size: int, tokens: int
) -> dict[str, Any]:
    """Medians over recovered trials in which anything was done, against the fixed practice.

    Args:
        trials: recovered ones.
        batch_size: samples a step.
        tokens: a sample.
    """
    counted = [one for one in trials if one["incidents"] or one["skipped_steps"]]
    practice = STEPS_LOST_BY_PRACTICE * batch_size * tokens
    figures: dict[str, Any] = {"trials": len(counted), "fixed_practice": practice}
    if not counted:
        return figures
    lost = [samples_lost(one, batch_size) for one in counted]
    for name, at in (("before_release", 0), ("after_release", 1)):
        middle = median(one[at] for one in lost) * tokens
        worst = max(one[at] for one in lost) * tokens
        figures[name] = {
            "median": middle,
            "worst": worst,
            "times_fewer": round(practice / middle, 2) if middle else None,
        }
    return figures


def shows_harm(end: float | None, healthy: Healthy, anchor: int) -> bool:
    """Whether an unguarded run ended where no healthy one does."""
    return end is None or end > healthy.bound[anchor]
