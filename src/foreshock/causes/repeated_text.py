"""Text that repeats itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class RepeatedText(Cause):
    """Runs of the same n-gram: the loss on them falls to nothing or jumps, and their gradients all
    point one way, so that the gradient norm spikes, often before the loss does. Whether they do
    harm depends on model and order.

    Reference: OLMo 2, https://arxiv.org/abs/2501.00656, section 3.1 (n-grams of 1 to 13 tokens
    repeated 32 times or more; masking them makes fewer spikes, and does nothing against slow
    growth). SIGNATURES experiment 4: a repeated 2-gram takes the gradient norm to 66 times its
    size.
    """

    name: ClassVar[str] = "repeated_text"
    predicts: ClassVar[str] = (
        "gradient norm spikes, then perhaps the loss; the samples repeat themselves"
    )
    born: ClassVar[tuple[Born, ...]] = (
        Born.BACKWARD,
        Born.FORWARD,
    )
    lead: ClassVar[str] = "0 to a few steps"
    recurs: ClassVar[str] = "wherever such text is trained"
    contradicts: ClassVar[str] = "samples that repeat no more than others"
    settled_by: ClassVar[str] = "the window with the samples that repeat left out"
    remedies: ClassVar[tuple[str, ...]] = (
        "masking or filtering repeated n-grams",
        "setting the window aside",
        "clipping the gradient",
    )
    no_help: ClassVar[tuple[str, ...]] = ("lowering the rate for the whole run",)
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = -1.0
    expects: ClassVar[Mapping[str, float]] = {
        "samples_repeat": 0.97,
        "gradient_moved": 0.95,
        "gradient_moved_first": 0.45,
        "loss_moved_first": 0.5,
        "update_moved_first": 0.03,
        "samples_differ": 0.85,
        "samples_alike": 0.25,
        "loss_moved": 0.8,
        "few_samples_carry_the_loss": 0.4,
        "brief": 0.5,
        "loss_dropped": 0.2,
        "nonfinite": 0.04,
        "rate_jumped": 0.03,
        "after_start": 0.06,
        "lasting": 0.25,
        "setting_data_aside_did_not_help": 0.1,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.75, "stays_away": 0.25},
        "earlier_state": {"comes_back": 0.45, "stays_away": 0.55},
        "clean_control": {"comes_back": 0.04, "stays_away": 0.96},
        "other_batch": {"comes_back": 0.12, "stays_away": 0.88},
        "left_out": {"comes_back": 0.1, "stays_away": 0.9},
        "reseeded": {"comes_back": 0.65, "stays_away": 0.35},
        "bisection": {"few_samples": 0.6, "many_samples": 0.3, "none_needed": 0.1},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.08, "not_cured": 0.92},
        "lower_rate": {"cured": 0.25, "not_cured": 0.75},
        "fresh_moments": {"cured": 0.14, "not_cured": 0.86},
        "repaired_moments": {"cured": 0.12, "not_cured": 0.88},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.86, "moments_damaged": 0.08, "weights_damaged": 0.06},
    }
