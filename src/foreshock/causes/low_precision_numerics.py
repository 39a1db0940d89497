"""Rounding that points one way, or eats the updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class LowPrecisionNumerics(Cause):
    """16-bit arithmetic without overflow: rounding of attention's output that is biased where a
    row's largest score comes twice, angles of positions in 16 bits, weights of 16 bits without a
    master copy, which updates no longer move. The error adds up over thousands of steps.

    Reference: https://arxiv.org/abs/2510.04212 (flash attention in bf16: spectrum of the query-key
    increment at 5k, gradient norm at 21k, loss at 22k; an fp32 output mends it); transformers#29285
    (rotary angles in bf16). A bf16 weight of 1 does not move by updates of 1e-4 (METHODS,
    measured).
    """

    name: ClassVar[str] = "low_precision_numerics"
    predicts: ClassVar[str] = (
        "few heads of one layer grow, or updates are lost to rounding; "
        "then gradient norm, then the loss, late"
    )
    born: ClassVar[tuple[Born, ...]] = (
        Born.FORWARD,
        Born.UPDATE,
    )
    lead: ClassVar[str] = "1,000 to 17,000 steps, by what is measured"
    recurs: ClassVar[str] = "steadily, on every batch"
    contradicts: ClassVar[str] = "a run in fp32; a result that fp32 does not change"
    settled_by: ClassVar[str] = (
        "the same window with the forward, then only attention, in fp32 or fp64"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "fp32 for attention's output, softmax, norms and angles",
        "fp32 master weights, Kahan summation or stochastic rounding",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "skipping batches",
        "fresh optimizer moments",
        "a lower rate, which loses more updates",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.6
    expects: ClassVar[Mapping[str, float]] = {
        "runs_in_low_precision": 0.97,
        "updates_lost_to_rounding": 0.6,
        "loss_rising_slowly": 0.4,
        "one_part_moved": 0.45,
        "lasting": 0.8,
        "brief": 0.05,
        "gradient_moved_first": 0.35,
        "gradient_grew_before": 0.3,
        "attention_logit_grew_first": 0.15,
        "update_moved_first": 0.05,
        "rate_jumped": 0.03,
        "nonfinite": 0.1,
        "loss_level_shifted": 0.3,
        "after_start": 0.12,
        "rollback_did_not_help": 0.88,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.85, "stays_away": 0.15},
        "earlier_state": {"comes_back": 0.55, "stays_away": 0.45},
        "clean_control": {"comes_back": 0.5, "stays_away": 0.5},
        "other_batch": {"comes_back": 0.85, "stays_away": 0.15},
        "left_out": {"comes_back": 0.85, "stays_away": 0.15},
        "reseeded": {"comes_back": 0.82, "stays_away": 0.18},
        "bisection": {"few_samples": 0.1, "many_samples": 0.12, "none_needed": 0.78},
        "fp32_forward": {"cured": 0.85, "not_cured": 0.15},
        "fp64_attention": {"cured": 0.45, "not_cured": 0.55},
        "fp64_loss": {"cured": 0.15, "not_cured": 0.85},
        "lower_rate": {"cured": 0.25, "not_cured": 0.75},
        "fresh_moments": {"cured": 0.1, "not_cured": 0.9},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.8, "differs": 0.2},
        "twice": {"same_bits": 0.88, "differs": 0.12},
        "eager": {"same": 0.7, "differs": 0.3},
        "inspection": {"sound": 0.85, "moments_damaged": 0.08, "weights_damaged": 0.07},
    }
