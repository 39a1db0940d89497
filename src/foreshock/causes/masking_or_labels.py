"""The loss counts the wrong tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class MaskingOrLabels(Cause):
    """Labels that are masked as a whole, padding that counts, an end token that is never trained, a
    shift by one, rows of attention in which nothing may be seen. The loss is wrong, or NaN where it
    averages over nothing, whatever the state of the model; the gradient follows it.

    Reference: NeMo AutoModel#1336 (end and padding token are one); nGPT#11 and torch#41508 (rows
    masked as a whole); soup#342 and prime-rl#2084 (masks after an exponential).
    """

    name: ClassVar[str] = "masking_or_labels"
    predicts: ClassVar[str] = (
        "the loss shifts or jumps from one step on, exactly 0, NaN or at "
        "uniform, with labels masked; lead 0"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "0 steps"
    recurs: ClassVar[str] = "in every batch that is built so"
    contradicts: ClassVar[str] = "as many tokens count as before"
    settled_by: ClassVar[str] = (
        "the same batch on any state is as wrong: an earlier snapshot shows it too"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "the mask or the labels set right; counted tokens watched",
        "samples without labels left out",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "a lower rate",
        "a rollback alone",
        "fresh optimizer moments",
    )
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = -1.5
    expects: ClassVar[Mapping[str, float]] = {
        "labels_masked": 0.3,
        "loss_moved_first": 0.8,
        "loss_level_shifted": 0.5,
        "loss_at_uniform": 0.2,
        "loss_dropped": 0.3,
        "exact_value": 0.25,
        "born_in_forward": 0.3,
        "nonfinite": 0.3,
        "update_moved_first": 0.03,
        "rate_jumped": 0.03,
        "lasting": 0.8,
        "brief": 0.08,
        "code_changed": 0.2,
        "weight_jumped": 0.01,
        "runs_in_fp16": 0.2,
        "constant_factor": 0.2,
        "attention_logit_grew_first": 0.03,
        "setting_data_aside_did_not_help": 0.5,
        "rollback_did_not_help": 0.85,
        "gradient_moved": 0.85,
        "scaled_together": 0.05,
        "update_moved": 0.35,
        "only_the_metric": 0.03,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.9, "stays_away": 0.1},
        "earlier_state": {"comes_back": 0.85, "stays_away": 0.15},
        "clean_control": {"comes_back": 0.68, "stays_away": 0.32},
        "other_batch": {"comes_back": 0.7, "stays_away": 0.3},
        "left_out": {"comes_back": 0.78, "stays_away": 0.22},
        "reseeded": {"comes_back": 0.88, "stays_away": 0.12},
        "bisection": {"few_samples": 0.15, "many_samples": 0.3, "none_needed": 0.55},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.08, "not_cured": 0.92},
        "lower_rate": {"cured": 0.1, "not_cured": 0.9},
        "fresh_moments": {"cured": 0.1, "not_cured": 0.9},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.75, "differs": 0.25},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.9, "differs": 0.1},
        "inspection": {"sound": 0.85, "moments_damaged": 0.09, "weights_damaged": 0.06},
    }
