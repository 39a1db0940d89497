"""An activation or a logit beyond 65504 under fp16."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class FP16ForwardOverflow(Cause):
    """A value of the forward pass leaves the range of fp16, most often an attention logit or what a
    feed-forward layer gives. The loss is not finite on every batch, no scale of the loss mends it,
    and the scaler halves its scale step by step down to nothing.

    Reference: Micikevicius et al. (2018), https://arxiv.org/abs/1710.03740; transformers#5651 (a
    feed-forward layer of T5 that gives 66,246). SIGNATURES experiment 3: not finite at step 17,
    then one log2 a step, monotone.
    """

    name: ClassVar[str] = "fp16_forward_overflow"
    predicts: ClassVar[str] = (
        "activations or logits grow, the loss is not finite, the loss "
        "scale falls one log2 a step, on every batch"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "0 steps for the loss; activations grow before"
    recurs: ClassVar[str] = "in every step, whatever the batch"
    contradicts: ClassVar[str] = "a finite loss while the scale falls; a run that uses no fp16"
    settled_by: ClassVar[str] = "the same steps with the whole forward in fp32"
    remedies: ClassVar[tuple[str, ...]] = (
        "bf16, or fp32 for what overflows",
        "scores scaled before the product, softmax in fp32",
        "qk-layernorm or soft-capping",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "skipping batches",
        "a lower loss scale",
        "clipping the gradient",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.0
    expects: ClassVar[Mapping[str, float]] = {
        "runs_in_fp16": 0.97,
        "nonfinite": 0.97,
        "born_in_forward": 0.93,
        "born_in_backward": 0.05,
        "scale_falling_every_step": 0.8,
        "scale_fell_with_finite_loss": 0.06,
        "recurs_every_step": 0.8,
        "activation_grew": 0.5,
        "attention_logit_high": 0.35,
        "brief": 0.08,
        "lasting": 0.85,
        "rate_jumped": 0.05,
        "update_moved_first": 0.05,
        "loss_moved_first": 0.5,
        "born_in_weights": 0.01,
        "rollback_did_not_help": 0.88,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.9, "stays_away": 0.1},
        "earlier_state": {"comes_back": 0.6, "stays_away": 0.4},
        "clean_control": {"comes_back": 0.6, "stays_away": 0.4},
        "other_batch": {"comes_back": 0.88, "stays_away": 0.12},
        "left_out": {"comes_back": 0.85, "stays_away": 0.15},
        "reseeded": {"comes_back": 0.85, "stays_away": 0.15},
        "bisection": {"few_samples": 0.1, "many_samples": 0.15, "none_needed": 0.75},
        "fp32_forward": {"cured": 0.9, "not_cured": 0.1},
        "fp64_attention": {"cured": 0.4, "not_cured": 0.6},
        "fp64_loss": {"cured": 0.15, "not_cured": 0.85},
        "lower_rate": {"cured": 0.2, "not_cured": 0.8},
        "fresh_moments": {"cured": 0.1, "not_cured": 0.9},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.85, "differs": 0.15},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.85, "differs": 0.15},
        "inspection": {"sound": 0.85, "moments_damaged": 0.09, "weights_damaged": 0.06},
    }
