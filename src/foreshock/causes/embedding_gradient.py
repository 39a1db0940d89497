"""The embedding's gradient dwarfs all others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class EmbeddingGradient(Cause):
    """Small embeddings before a norm layer have large gradients (the norm's Jacobian goes as 1 /
    ||x||). A spike of the embedding's gradient norm takes the whole norm along, and the collapse
    follows within a few steps.

    Reference: GLM-130B, https://arxiv.org/abs/2210.02414 (the collapse lags the embedding's
    gradient spike by a few steps; its gradient shrunk to 0.1 mended it); Takase et al. (2023),
    https://arxiv.org/abs/2312.16903. SIGNATURES experiment 7: embedding to rest 17.5 at an
    initialisation of .002, 1.75 with the gradient shrunk to 0.1.
    """

    name: ClassVar[str] = "embedding_gradient"
    predicts: ClassVar[str] = (
        "the embedding's share of the gradient rises, then the whole gradient norm, then the loss"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.BACKWARD,)
    lead: ClassVar[str] = "a few steps"
    recurs: ClassVar[str] = "in spikes, mostly early in training"
    contradicts: ClassVar[str] = "an embedding whose share of the gradient is as ever"
    settled_by: ClassVar[str] = "the same window with the embedding's gradient shrunk"
    remedies: ClassVar[tuple[str, ...]] = (
        "embedding gradient shrink (0.1)",
        "scaled or normalised embeddings",
        "no weight decay on embeddings",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "fresh optimizer moments",
        "skipping batches for long",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.2
    expects: ClassVar[Mapping[str, float]] = {
        "embedding_gradient_dominates": 0.95,
        "gradient_moved_first": 0.75,
        "gradient_moved": 0.95,
        "loss_moved_first": 0.12,
        "update_moved_first": 0.05,
        "one_part_moved": 0.5,
        "lower_layers_moved_more": 0.5,
        "rate_jumped": 0.04,
        "rms_t_rose": 0.6,
        "nonfinite": 0.1,
        "after_start": 0.06,
        "weight_jumped": 0.01,
        "born_in_forward": 0.03,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.78, "stays_away": 0.22},
        "earlier_state": {"comes_back": 0.48, "stays_away": 0.52},
        "clean_control": {"comes_back": 0.45, "stays_away": 0.55},
        "other_batch": {"comes_back": 0.68, "stays_away": 0.32},
        "left_out": {"comes_back": 0.65, "stays_away": 0.35},
        "reseeded": {"comes_back": 0.65, "stays_away": 0.35},
        "bisection": {"few_samples": 0.15, "many_samples": 0.2, "none_needed": 0.65},
        "fp32_forward": {"cured": 0.1, "not_cured": 0.9},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.4, "not_cured": 0.6},
        "fresh_moments": {"cured": 0.15, "not_cured": 0.85},
        "repaired_moments": {"cured": 0.12, "not_cured": 0.88},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.82, "moments_damaged": 0.1, "weights_damaged": 0.08},
    }
