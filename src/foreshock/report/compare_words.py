"""What follows from runs side by side, in sentences no firmer than their number allows."""

import math
from typing import Final

from foreshock.report import words
from foreshock.report.clean import clean_text
from foreshock.report.compare_result import ComparedRun, Comparison

_FEW: Final = 5
"""Runs below which a share means little: the interval of 4 of 4 still begins at 51 %."""

_SAME_LENGTH: Final = 0.9
"""Final losses are compared where the shortest run reaches this share of the longest."""


def wilson(hits: int, number: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927); from 0 to 1 where nothing was counted.

    >>> tuple(round(one, 2) for one in wilson(2, 2)), wilson(0, 0)
    ((0.34, 1.0), (0.0, 1.0))
    """
    if not number:
        return 0.0, 1.0
    z2 = 1.96**2
    middle = (hits + z2 / 2) / (number + z2)
    half = math.sqrt(z2 * (hits * (number - hits) / number + z2 / 4)) / (number + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def conclusions(one: Comparison) -> tuple[str, ...]:
    """The sentences, the most telling first."""
    if one.num_judged < 2:
        return ("There are not two runs long enough to be compared.",)
    told = [_share(one)]
    told += _together(one)
    told += _rates(one) if one.by_lr else _edge(one)
    if math.isfinite(one.median_outliers_per_10k):
        rate = words.figure(one.median_outliers_per_10k)
        told.append(
            f"One-step outliers without after-effect: {rate} in 10,000 logged steps (median)."
        )
    told += _finals(one)
    return tuple(told)


def _share(one: Comparison) -> str:
    low, high = one.interval
    told = (
        f"{one.num_troubled} of {one.num_judged} runs have trouble "
        f"(95% interval of the share: {low:.0%} to {high:.0%})"
    )
    if one.num_judged == 2:
        return f"{told}; two runs allow almost no conclusion."
    if one.num_judged < _FEW:
        return f"{told}; so few runs allow little."
    return f"{told}."


def _together(one: Comparison) -> list[str]:
    met = one.together
    if met.num_runs < 2:
        return []
    if not met.meetings:
        return [
            f"{met.num_runs} runs spiked, no two of them within {met.tolerance_steps} steps "
            "of each other: not one batch or one moment of the schedule that all share."
        ]
    widest = max(met.meetings, key=lambda meeting: len(meeting.runs))
    at = ", ".join(f"{meeting.step:,}" for meeting in met.meetings[:5])
    more = f" and {len(met.meetings) - 5} more" if len(met.meetings) > 5 else ""
    begin = (
        f"The same steps in up to {len(widest.runs)} of {one.num_judged} runs "
        f"(step {at}{more}; within {met.tolerance_steps} steps)"
    )
    if not met.believed:
        return [f"{begin}, which may be chance (probability {words.percent(met.chance)})."]
    return [
        f"{begin}; by chance so many have probability {words.percent(met.chance)}: the data "
        "order, not the optimiser, if the runs share it (a change of the schedule at those "
        "steps would look the same)."
    ]


def _edge(one: Comparison) -> list[str]:
    if one.num_troubled == 0:
        return [
            f"No run had trouble; with {one.num_judged} runs the true share may still be up to "
            f"{one.interval[1]:.0%}."
        ]
    if one.num_troubled == 1:
        return ["One run alone had trouble: its seed, its machine or chance; more runs would tell."]
    if one.together.believed or one.together.num_runs < 2:
        return []
    if one.num_troubled == one.num_judged and one.num_judged > 2:
        return ["Every run had trouble, at steps of its own: the recipe is past its edge."]
    return [
        "Runs had trouble at steps of their own and others had none: the recipe is at its edge, "
        "and any run of it may break."
        if one.num_troubled < one.num_judged
        else "Both runs had trouble, at steps of their own: the recipe is at or past its edge."
    ]


def _rates(one: Comparison) -> list[str]:
    alone = all(group.num_runs == 1 for group in one.by_lr)
    troubled = [group for group in one.by_lr if group.num_troubled]
    told: list[str] = []
    if one.safe_lr is not None:
        below = sum(group.num_runs for group in one.by_lr if group.lr <= one.safe_lr)
        told.append(
            f"The largest learning rate without trouble is {one.safe_lr:g} "
            f"({words.count(below, 'run')} up to it)"
        )
    else:
        told.append("There was trouble even at the lowest learning rate")
    if troubled:
        first = troubled[0]
        told[-1] += (
            f"; at {first.lr:g} {first.num_troubled} of {words.count(first.num_runs, 'run')} "
            "had some"
        )
        higher = [group for group in one.by_lr if group.lr > first.lr and not group.num_troubled]
        if higher:
            told[-1] += f", though at {higher[-1].lr:g} none had: the rate alone does not decide it"
    else:
        told[-1] += "; none higher was tried"
    told[-1] += ", one run a rate: another seed may move this." if alone else "."
    finite = [group for group in one.by_lr if math.isfinite(group.final_loss)]
    if len(finite) > 1 and _same_length(one.runs):
        best = min(finite, key=lambda group: group.final_loss)
        told.append(
            f"The lowest final loss, {words.figure(best.final_loss)}, was at learning rate "
            f"{best.lr:g}."
        )
    return told


def _finals(one: Comparison) -> list[str]:
    finals = [run for run in one.runs if math.isfinite(run.final_loss)]
    if len(finals) < 2:
        return []
    if not _same_length(finals):
        steps = sorted(run.last_step or 0 for run in finals)
        return [
            f"The runs end between step {steps[0]:,} and step {steps[-1]:,}: their final losses "
            "are not comparable."
        ]
    least = min(finals, key=lambda run: run.final_loss)
    most = max(finals, key=lambda run: run.final_loss)
    return [
        f"Final losses lie between {words.figure(least.final_loss)} ({clean_text(least.name)}) "
        f"and {words.figure(most.final_loss)} ({clean_text(most.name)})."
    ]


def _same_length(runs: "tuple[ComparedRun, ...] | list[ComparedRun]") -> bool:
    steps = [run.last_step or 0 for run in runs if math.isfinite(run.final_loss)]
    return bool(steps) and min(steps) >= _SAME_LENGTH * max(steps)
