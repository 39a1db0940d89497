"""Attention logits grow until the softmax is one-hot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class AttentionLogitGrowth(Cause):
    """Query and key weights grow, so that the largest attention logit rises for hundreds of steps;
    rows of attention lose their entropy, and where the softmax has become one-hot no gradient mends
    it. The global gradient norm stays normal meanwhile; the first layer is worst.

    Reference: Wortsman et al. (2023), https://arxiv.org/abs/2309.14322 (every run above 1e4
    diverged); Dehghani et al. (2023), https://arxiv.org/abs/2302.05442. SIGNATURES experiment 1: at
    step 100, rates .01 to .3, logits of 30 to 318,599 without qk-layernorm, at most 16 with it.
    """

    name: ClassVar[str] = "attention_logit_growth"
    predicts: ClassVar[str] = (
        "query and key norms, then the largest attention logit, then low "
        "attention entropy, then the loss; the gradient norm moves last"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "hundreds of steps; an alarm at 100, failure to be expected at 1e4"
    recurs: ClassVar[str] = (
        "from every snapshot in which the logits are already large, at shrinking intervals"
    )
    contradicts: ClassVar[str] = "attention logits that are level, or small"
    settled_by: ClassVar[str] = (
        "the window at a third of the rate and with attention in fp64: "
        "neither order nor precision is behind it"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "qk-layernorm, with a warm-up of the rate after the change",
        "QK-Clip or attention soft-capping",
        "an older state, with a lower rate",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "skipping steps with a large gradient",
        "fresh or rebuilt optimizer moments",
        "another batch",
        "clipping the gradient",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.2
    expects: ClassVar[Mapping[str, float]] = {
        "attention_logit_high": 0.85,
        "attention_logit_grew_first": 0.85,
        "attention_entropy_fell": 0.75,
        "loss_moved_first": 0.35,
        "gradient_moved_first": 0.12,
        "lasting": 0.75,
        "brief": 0.08,
        "gradient_grew_before": 0.25,
        "rate_jumped": 0.05,
        "after_start": 0.05,
        "lower_layers_moved_more": 0.4,
        "skipping_did_not_help": 0.85,
        "fresh_moments_did_not_help": 0.9,
        "rollback_did_not_help": 0.8,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.8, "stays_away": 0.2},
        "earlier_state": {"comes_back": 0.2, "stays_away": 0.8},
        "clean_control": {"comes_back": 0.12, "stays_away": 0.88},
        "other_batch": {"comes_back": 0.82, "stays_away": 0.18},
        "left_out": {"comes_back": 0.7, "stays_away": 0.3},
        "reseeded": {"comes_back": 0.75, "stays_away": 0.25},
        "bisection": {"few_samples": 0.15, "many_samples": 0.15, "none_needed": 0.7},
        "fp32_forward": {"cured": 0.15, "not_cured": 0.85},
        "fp64_attention": {"cured": 0.15, "not_cured": 0.85},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.5, "not_cured": 0.5},
        "fresh_moments": {"cured": 0.12, "not_cured": 0.88},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.91, "differs": 0.09},
        "eager": {"same": 0.91, "differs": 0.09},
        "inspection": {"sound": 0.82, "moments_damaged": 0.09, "weights_damaged": 0.09},
    }
