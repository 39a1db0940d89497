"""Scaled gradients beyond the range of fp16."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class FP16GradientOverflow(Cause):
    """The loss is finite, its scaled gradient is not. The scaler skips the step and halves its
    scale, again and again as gradients grow; in the end it is below 1 and small gradients are lost,
    or the loss explodes. One overflow now and then is how a scale is meant to be found.

    Reference: GLM-130B's log (the scale collapses at 33,710, the loss explodes at 33,740);
    OPT-175B, https://arxiv.org/abs/2205.01068 (loss scale to 0 with the last layer's activation
    norm rising).
    """

    name: ClassVar[str] = "fp16_gradient_overflow"
    predicts: ClassVar[str] = (
        "the gradient is not finite at a finite loss, the loss scale drops, then the loss explodes"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.BACKWARD,)
    lead: ClassVar[str] = "about 30 steps from the scale to the loss"
    recurs: ClassVar[str] = "as often as the scale grows back"
    contradicts: ClassVar[str] = "a loss that is not finite first; a run that uses no fp16"
    settled_by: ClassVar[str] = "the same steps in fp32: the gradients are finite"
    remedies: ClassVar[tuple[str, ...]] = (
        "bf16, or fp32 gradients",
        "a state with a loss scale of at least 1 and falling activation norms",
        "a lower rate, a tighter clip",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "clipping scaled gradients",
        "the newest snapshot, whatever its scale",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.0
    expects: ClassVar[Mapping[str, float]] = {
        "runs_in_fp16": 0.97,
        "nonfinite": 0.93,
        "born_in_backward": 0.9,
        "born_in_forward": 0.04,
        "scale_fell_with_finite_loss": 0.9,
        "scale_falling_every_step": 0.45,
        "activation_grew": 0.45,
        "gradient_moved_first": 0.6,
        "gradient_grew_before": 0.35,
        "recurs_every_step": 0.35,
        "loss_moved": 0.35,
        "brief": 0.25,
        "rate_jumped": 0.05,
        "update_moved_first": 0.04,
        "born_in_weights": 0.01,
        "embedding_gradient_dominates": 0.15,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.8, "stays_away": 0.2},
        "earlier_state": {"comes_back": 0.55, "stays_away": 0.45},
        "clean_control": {"comes_back": 0.5, "stays_away": 0.5},
        "other_batch": {"comes_back": 0.75, "stays_away": 0.25},
        "left_out": {"comes_back": 0.7, "stays_away": 0.3},
        "reseeded": {"comes_back": 0.72, "stays_away": 0.28},
        "bisection": {"few_samples": 0.15, "many_samples": 0.15, "none_needed": 0.7},
        "fp32_forward": {"cured": 0.6, "not_cured": 0.4},
        "fp64_attention": {"cured": 0.12, "not_cured": 0.88},
        "fp64_loss": {"cured": 0.08, "not_cured": 0.92},
        "lower_rate": {"cured": 0.25, "not_cured": 0.75},
        "fresh_moments": {"cured": 0.1, "not_cured": 0.9},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.75, "differs": 0.25},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.88, "differs": 0.12},
        "inspection": {"sound": 0.85, "moments_damaged": 0.09, "weights_damaged": 0.06},
    }
