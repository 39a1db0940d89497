"""The same program, on other software or hardware."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class ChangedEnvironment(Cause):
    """A package, a driver, a variable or a machine changed between two starts, and another kernel
    computes what was computed before: another attention backend, another rounding, a defect of a
    release.

    Reference: BioNeMo#421 (two variables switched the attention backend); bitsandbytes#227,
    DeepSpeed#7718, torch#117471 (defects that came and went with a release); torchtitan#951 (a bad
    machine).
    """

    name: ClassVar[str] = "changed_environment"
    predicts: ClassVar[str] = (
        "soon after a start with other packages, variables or hardware, "
        "loss or gradient are off; the settings are as they were"
    )
    born: ClassVar[tuple[Born, ...]] = (
        Born.FORWARD,
        Born.BACKWARD,
    )
    lead: ClassVar[str] = "from none to thousands of steps after the start"
    recurs: ClassVar[str] = "as long as the environment stays"
    contradicts: ClassVar[str] = "no restart nearby; an environment as it was"
    settled_by: ClassVar[str] = "kernels against eager ones, and the window in the old environment"
    remedies: ClassVar[tuple[str, ...]] = (
        "the old packages, variables or machines",
        "reference kernels until it is mended",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "a lower rate",
        "a rollback in the same environment",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.5
    expects: ClassVar[Mapping[str, float]] = {
        "after_start": 0.93,
        "packages_changed": 0.6,
        "environment_changed": 0.5,
        "code_changed": 0.2,
        "configuration_changed": 0.04,
        "world_changed": 0.15,
        "update_moved_first": 0.1,
        "rate_off_schedule": 0.03,
        "update_like_fresh": 0.03,
        "lasting": 0.75,
        "brief": 0.08,
        "canary_differs": 0.1,
        "nonfinite": 0.25,
        "rate_jumped": 0.03,
        "update_count_fell": 0.02,
        "constant_factor": 0.1,
        "rollback_did_not_help": 0.88,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.85, "stays_away": 0.15},
        "earlier_state": {"comes_back": 0.75, "stays_away": 0.25},
        "clean_control": {"comes_back": 0.7, "stays_away": 0.3},
        "other_batch": {"comes_back": 0.85, "stays_away": 0.15},
        "left_out": {"comes_back": 0.85, "stays_away": 0.15},
        "reseeded": {"comes_back": 0.82, "stays_away": 0.18},
        "bisection": {"few_samples": 0.1, "many_samples": 0.12, "none_needed": 0.78},
        "fp32_forward": {"cured": 0.3, "not_cured": 0.7},
        "fp64_attention": {"cured": 0.25, "not_cured": 0.75},
        "fp64_loss": {"cured": 0.1, "not_cured": 0.9},
        "lower_rate": {"cured": 0.2, "not_cured": 0.8},
        "fresh_moments": {"cured": 0.12, "not_cured": 0.88},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.8, "differs": 0.2},
        "twice": {"same_bits": 0.7, "differs": 0.3},
        "eager": {"same": 0.4, "differs": 0.6},
        "inspection": {"sound": 0.8, "moments_damaged": 0.1, "weights_damaged": 0.1},
    }
