"""Gradients have shrunk to Adam's epsilon."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class TinyGradientsVsEpsilon(Cause):
    """Where the root mean square of a gradient nears eps, m / (sqrt(v) + eps) shrinks: updates
    collapse, first in early layers and large models, and m / sqrt(v) of single weights turns to
    plus or minus one. When gradients grow again all weights move at once.

    Reference: Molybog et al. (2023), https://arxiv.org/abs/2304.09871 (at 546B, not at 30B and
    below); Wortsman et al. (2023), https://arxiv.org/abs/2309.14322: eps 1e-15 for 1e-8 helps at
    4.8B, 1e-6 diverges. The lead has not been measured.
    """

    name: ClassVar[str] = "tiny_gradients_vs_epsilon"
    predicts: ClassVar[str] = (
        "the gradient's root mean square falls to eps, updates collapse, "
        "then snap back, then the loss"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.UPDATE,)
    lead: ClassVar[str] = "not known; the gradient nears eps over thousands of steps"
    recurs: ClassVar[str] = "in bursts, while the gradient stays near eps"
    contradicts: ClassVar[str] = "gradients far above eps in every group"
    settled_by: ClassVar[str] = "the same steps with a smaller eps, or fresh moments"
    remedies: ClassVar[tuple[str, ...]] = (
        "a smaller eps (1e-15)",
        "a gradient that is not so small: other initialisation, smaller batch",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "a larger eps (1e-6 diverged at 4.8B)",
        "clipping the gradient",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -2.0
    expects: ClassVar[Mapping[str, float]] = {
        "gradient_near_epsilon": 0.95,
        "update_collapsed": 0.75,
        "update_moved_first": 0.4,
        "lower_layers_moved_more": 0.35,
        "gradient_moved_first": 0.15,
        "loss_moved_first": 0.3,
        "rate_jumped": 0.03,
        "nonfinite": 0.05,
        "after_start": 0.05,
        "loss_rising_slowly": 0.25,
        "updates_lost_to_rounding": 0.04,
        "runs_in_fp16": 0.1,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.82, "stays_away": 0.18},
        "earlier_state": {"comes_back": 0.25, "stays_away": 0.75},
        "clean_control": {"comes_back": 0.25, "stays_away": 0.75},
        "other_batch": {"comes_back": 0.82, "stays_away": 0.18},
        "left_out": {"comes_back": 0.8, "stays_away": 0.2},
        "reseeded": {"comes_back": 0.8, "stays_away": 0.2},
        "bisection": {"few_samples": 0.08, "many_samples": 0.12, "none_needed": 0.8},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.08, "not_cured": 0.92},
        "lower_rate": {"cured": 0.25, "not_cured": 0.75},
        "fresh_moments": {"cured": 0.5, "not_cured": 0.5},
        "repaired_moments": {"cured": 0.18, "not_cured": 0.82},
        "other_split": {"same": 0.92, "differs": 0.08},
        "twice": {"same_bits": 0.93, "differs": 0.07},
        "eager": {"same": 0.93, "differs": 0.07},
        "inspection": {"sound": 0.84, "moments_damaged": 0.1, "weights_damaged": 0.06},
    }
