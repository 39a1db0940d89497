"""Which of our causes is right for a public report, by the class that was established for it."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from benchmarks.diagnosis.scoring import UNKNOWN


class Label(NamedTuple):
    """The causes that are right, and why these."""

    causes: frozenset[str]
    reason: str


def _label(reason: str, *causes: str) -> Label:
    return Label(frozenset(causes), reason)


BY_KIND: Final[Mapping[str, Label]] = {
    "benign-alarm": _label("nothing was wrong", "benign"),
    "benign-alarm?": _label("most likely nothing was wrong; not established", "benign", UNKNOWN),
    "logging-artifact": _label("what was printed is not what was computed", "logging_artefact"),
    "undetermined": _label("nobody found out, so that nothing more can be claimed", UNKNOWN),
}
"""Where the kind of the report says it already."""

BY_CLASS: Final[Mapping[str, Label]] = {
    "attention-logits": _label("the same", "attention_logit_growth"),
    "output-logits": _label("the same", "output_logit_drift"),
    "data": _label(
        "the class does not say how the samples differ",
        "data_batch",
        "repeated_text",
        "data_mix_change",
    ),
    "resume/data-order": _label(
        "whatever a resume did not bring back: the sampler, the schedule, the settings",
        "data_order",
        "resume_mismatch",
        "schedule_lost",
        "optimizer_state_lost",
    ),
    "optimizer-state": _label(
        "lost, wrong, or kept in too few bits",
        "optimizer_state_lost",
        "optimizer_state_corrupt",
        "low_precision_numerics",
    ),
    "masking/label": _label("the same", "masking_or_labels"),
    "loss-normalisation": _label("the same", "loss_normalisation"),
    "distributed/rank": _label(
        "ranks that differ, or what they lose when they reduce",
        "rank_desync",
        "reduction_precision",
    ),
    "numeric-fp16": _label(
        "half precision: out of its range on either way, or too coarse",
        "fp16_forward_overflow",
        "fp16_gradient_overflow",
        "numeric_overflow",
        "low_precision_numerics",
    ),
    "lr/warmup": _label(
        "the rate, its rise, or its course", "lr_too_high", "warmup_too_short", "schedule_lost"
    ),
    "hardware-SDC": _label(
        "wrong bits, wherever they fell",
        "weight_corruption",
        "optimizer_state_corrupt",
        "rank_desync",
    ),
    "architecture/init": _label("no cause of ours: the model's design", UNKNOWN),
    "code-bug-other": _label("no cause of ours: a mistake of one program", UNKNOWN),
}


def label_of(row: Mapping[str, Any]) -> Label:
    """The label of a report.

    Raises:
        KeyError: its class is not in the table.
    """
    return BY_KIND.get(row["kind"]) or BY_CLASS[row["cause_class"]]
