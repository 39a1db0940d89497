"""A run that was taken up with other settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np

from foreshock.core.case import Change
from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.forced_settings import ForcedSettings
from foreshock.core.program import Program

Setting = Literal["weight_decay", "beta1", "beta2", "clip"]
SETTINGS: tuple[Setting, ...] = ("weight_decay", "beta1", "beta2", "clip")


@final
@dataclass(frozen=True, kw_only=True)
class ChangedSettings(ProgramFault):
    """Train on with one setting that is not what it was, as another configuration would have it.

    - `weight_decay`: times `200 ** intensity`.
    - `beta1`: down to `beta1 * (1 - intensity)`; at 1 there is no momentum.
    - `beta2`: down to `beta2 * (1 - 0.9 * intensity)`: v forgets within a step or two.
    - `clip`: times `0.001 ** intensity`; Adam learns the new scale.

    Whoever builds the run anew finds the difference by `changes`, as it stands in a run's record
    of its start.

    Args:
        setting: which.
        intensity: 0 to 1, as above.

    Raises:
        ConfigError: an argument is not allowed; at the change, the program has no such setting.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: weight_decay +0.03 at
    11 times, +0.18 at 31 and +1.04 at 90 times, after 75 steps; beta1 0 to +0.04; beta2 +0.02,
    +0.06 and +0.15; clip +0.01, +0.08 and +0.29. Updates alarm first, at large values only.

    No source: our choice of settings that a resume by hand gets wrong without an error.
    """

    name: ClassVar[str] = "changed_settings"
    cause: ClassVar[str] = "resume_mismatch"

    setting: Setting = "weight_decay"
    intensity: float = 1.0

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            allowed = ", ".join(SETTINGS)
            raise ConfigError(f"ChangedSettings.setting is {self.setting!r}; allowed: {allowed}.")
        self.require_share("intensity")

    def changes(self, program: Program, step: int) -> tuple[Change, ...]:
        """What a start after `step` finds other than the start before; of the unchanged program."""
        before, after = self._values(program)
        if before == after:
            return ()
        told = {"before": f"{before:.6g}", "after": f"{after:.6g}"}
        return (Change(step=step, kind="configuration", name=self.setting, **told),)

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        before, after = self._values(program)
        said = f"{self.setting} is {after:.6g} instead of {before:.6g}"
        if self.setting == "clip":
            return replace(program, clip=after), said

        def other(place: int, group: Mapping[str, Any]) -> dict[str, Any]:
            if self.setting == "weight_decay":
                return {"weight_decay": self._changed(group["weight_decay"])}
            beta1, beta2 = group["betas"]
            if self.setting == "beta1":
                return {"betas": (self._changed(beta1), beta2)}
            return {"betas": (beta1, self._changed(beta2))}

        if self.intensity > 0:
            ForcedSettings(program.model, program.optimizer, other)
        return program, said

    def _changed(self, value: float) -> float:
        if self.setting == "weight_decay":
            return value * 200.0**self.intensity
        if self.setting == "clip":
            return value * 0.001**self.intensity
        return value * (1.0 - (0.9 if self.setting == "beta2" else 1.0) * self.intensity)

    def _values(self, program: Program) -> tuple[float, float]:
        group = program.optimizer.param_groups[0]
        betas = group.get("betas", (None, None))
        found = {
            "weight_decay": group.get("weight_decay"),
            "beta1": betas[0],
            "beta2": betas[1],
            "clip": program.clip,
        }[self.setting]
        if not found:
            raise ConfigError(
                f"ChangedSettings.setting is {self.setting!r}, of which this program has none."
            )
        return float(found), self._changed(float(found))
