"""Output logits drift away from log-probabilities."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class OutputLogitDrift(Cause):
    """The loss does not see a shift of all logits, and little holds it back without weight decay:
    the head or the last norm's gain grows, |log Z| with it, and late in training, or in a cool-down
    at a low rate, the loss creeps up.

    Reference: Wortsman et al. (2023), https://arxiv.org/abs/2309.14322, section 3.1.2; Marin 8B
    (loss crept up in the cool-down; z-loss 1e-4 mended it). SIGNATURES experiment 2: |log Z| ends
    at 57 without z-loss, at 14 with it, and the loss need not diverge.
    """

    name: ClassVar[str] = "output_logit_drift"
    predicts: ClassVar[str] = (
        "the head's norm, then log Z and the largest output logit, then a "
        "slow rise of the loss while the rate is low or falling"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "thousands of steps; the drift is slow"
    recurs: ClassVar[str] = "until the logits are held, whatever the data"
    contradicts: ClassVar[str] = "log Z and the head's norm as they were"
    settled_by: ClassVar[str] = (
        "the head's norm and log Z over the run; the same window at a "
        "lower rate does not stop the drift"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "z-loss of 1e-4",
        "soft-capping of the output logits",
        "weight decay on the head",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "fresh optimizer moments",
        "a lower rate",
        "taking weight decay away",
        "skipping batches",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -2.0
    expects: ClassVar[Mapping[str, float]] = {
        "log_z_grew": 0.9,
        "output_logit_grew": 0.85,
        "head_grew": 0.8,
        "loss_rising_slowly": 0.7,
        "gradient_moved_first": 0.08,
        "lasting": 0.85,
        "brief": 0.04,
        "recovering": 0.08,
        "nonfinite": 0.06,
        "rate_jumped": 0.03,
        "attention_logit_grew_first": 0.03,
        "fresh_moments_did_not_help": 0.95,
        "lower_rate_did_not_help": 0.8,
        "rollback_did_not_help": 0.9,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.7, "stays_away": 0.3},
        "earlier_state": {"comes_back": 0.3, "stays_away": 0.7},
        "clean_control": {"comes_back": 0.25, "stays_away": 0.75},
        "other_batch": {"comes_back": 0.7, "stays_away": 0.3},
        "left_out": {"comes_back": 0.7, "stays_away": 0.3},
        "reseeded": {"comes_back": 0.7, "stays_away": 0.3},
        "bisection": {"few_samples": 0.12, "many_samples": 0.12, "none_needed": 0.76},
        "fp32_forward": {"cured": 0.1, "not_cured": 0.9},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.15, "not_cured": 0.85},
        "lower_rate": {"cured": 0.2, "not_cured": 0.8},
        "fresh_moments": {"cured": 0.1, "not_cured": 0.9},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.82, "moments_damaged": 0.09, "weights_damaged": 0.09},
    }
