"""What several runs come to side by side, as data."""

from dataclasses import dataclass
from typing import Any

from foreshock.core.reading import json_number
from foreshock.inspection.finding import RunClass
from foreshock.report.together import Together


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One run of the comparison.

    Attributes:
        name: its path without what all share, and its number where a file holds several.
        num_spikes: episodes that matter and begin at a step of their own.
        onset_step, first_mover: of the worst of them.
        final_loss, best_loss: the last and the least level; NaN where there is none.
        outliers_per_10k: benign outliers per 10,000 logged values of the loss.
        lr: the highest learning rate; NaN where it is not known.
    """

    name: str
    path: str
    number: int
    run_class: RunClass
    num_spikes: int
    onset_step: int | None
    first_mover: str
    last_step: int | None
    final_loss: float
    best_loss: float
    outliers_per_10k: float
    lr: float

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        fields = {**vars(self), "class": str(self.run_class)}
        del fields["run_class"]
        return {
            key: json_number(value) if isinstance(value, float) else value
            for key, value in fields.items()
        }


@dataclass(frozen=True, kw_only=True)
class RateGroup:
    """The runs of one learning rate."""

    lr: float
    num_runs: int
    num_troubled: int
    final_loss: float

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object; `final_loss` is the median of the runs."""
        return {**vars(self), "final_loss": json_number(self.final_loss)}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What several runs come to, side by side.

    Attributes:
        runs: the worst first.
        num_judged: those that are long enough to be judged.
        num_troubled: of these, with trouble.
        interval: in which the share of troubled runs lies, 95 % (Wilson).
        median_outliers_per_10k: over the judged runs; NaN without any.
        final_spread: greatest less least final loss of the runs that have one; NaN where
            fewer than two do.
        together: the steps at which several spiked.
        by_lr: from the lowest rate up; empty unless at least two rates are known.
        safe_lr: the highest rate at which, as at all lower ones, no run had trouble.
        conclusions: what follows, one sentence each.
    """

    runs: tuple[ComparedRun, ...]
    num_judged: int
    num_troubled: int
    interval: tuple[float, float]
    median_outliers_per_10k: float
    final_spread: float
    together: Together
    by_lr: tuple[RateGroup, ...]
    safe_lr: float | None
    conclusions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object; the schema is documented in docs/diagnose.md."""
        return {
            "runs": [one.to_json() for one in self.runs],
            "num_judged": self.num_judged,
            "num_troubled": self.num_troubled,
            "interval": list(self.interval),
            "median_outliers_per_10k": json_number(self.median_outliers_per_10k),
            "final_spread": json_number(self.final_spread),
            "together": self.together.to_json(),
            "by_lr": [one.to_json() for one in self.by_lr],
            "safe_lr": self.safe_lr,
            "conclusions": list(self.conclusions),
        }
