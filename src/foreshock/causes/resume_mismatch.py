"""What was resumed does not fit what was saved."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class ResumeMismatch(Cause):
    """A restart with other settings than the run had: batch size, world size, betas, clip, sequence
    length, groups of parameters in another order, a guard that is switched off. What the state was
    fitted to is gone, and the loss moves soon after the start.

    Reference: Marin 32B, marin-community/marin#1390 (clipping of updates off since a restart);
    BigScience's 104B (a width of a smaller model); OPT-175B (a resume that brought the old betas
    back).
    """

    name: ClassVar[str] = "resume_mismatch"
    predicts: ClassVar[str] = (
        "soon after a start loss, gradient or update are off in a way "
        "that no single step explains, with settings that differ from the "
        "start before"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.BETWEEN,)
    lead: ClassVar[str] = "0 to hundreds of steps after the start"
    recurs: ClassVar[str] = "from every resume with those settings"
    contradicts: ClassVar[str] = "no restart nearby; a start that differs in nothing"
    settled_by: ClassVar[str] = "the window from before the start with the old settings"
    remedies: ClassVar[tuple[str, ...]] = (
        "the settings of the start before",
        "a rehearsal: save, resume, compare the next step",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "a rollback with the same settings",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.5
    expects: ClassVar[Mapping[str, float]] = {
        "after_start": 0.95,
        "configuration_changed": 0.75,
        "world_changed": 0.35,
        "code_changed": 0.3,
        "packages_changed": 0.12,
        "environment_changed": 0.12,
        "update_moved_first": 0.25,
        "loss_moved_first": 0.35,
        "rate_off_schedule": 0.06,
        "update_like_fresh": 0.03,
        "update_count_fell": 0.02,
        "lasting": 0.7,
        "brief": 0.1,
        "samples_seen_before": 0.08,
        "constant_factor": 0.1,
        "nonfinite": 0.08,
        "rollback_did_not_help": 0.75,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.75, "stays_away": 0.25},
        "earlier_state": {"comes_back": 0.62, "stays_away": 0.38},
        "clean_control": {"comes_back": 0.58, "stays_away": 0.42},
        "other_batch": {"comes_back": 0.7, "stays_away": 0.3},
        "left_out": {"comes_back": 0.7, "stays_away": 0.3},
        "reseeded": {"comes_back": 0.66, "stays_away": 0.34},
        "bisection": {"few_samples": 0.1, "many_samples": 0.15, "none_needed": 0.75},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.2, "not_cured": 0.8},
        "fresh_moments": {"cured": 0.12, "not_cured": 0.88},
        "repaired_moments": {"cured": 0.12, "not_cured": 0.88},
        "other_split": {"same": 0.88, "differs": 0.12},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.91, "differs": 0.09},
        "inspection": {"sound": 0.8, "moments_damaged": 0.14, "weights_damaged": 0.06},
    }
