"""Actions are commands on a training run; what a run can do is its capabilities."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol


class Capability(StrEnum):
    """What a training loop lets Foreshock do."""

    SKIP_UPDATE = "skip_update"
    SKIP_WITHOUT_HOST_WAIT = "skip_without_host_wait"
    REWIND_STATE = "rewind_state"
    REWIND_DATA = "rewind_data"
    QUARANTINE_DATA = "quarantine_data"
    QUARANTINE_BY_POSITION = "quarantine_by_position"
    SCALE_LR = "scale_lr"
    TIGHTEN_CLIP = "tighten_clip"
    RAISE_EPSILON = "raise_epsilon"
    LOWER_BETA2 = "lower_beta2"
    SHRINK_EMBEDDING_GRADIENTS = "shrink_embedding_gradients"
    RESET_MOMENTS = "reset_moments"
    PERTURB_WEIGHTS = "perturb_weights"
    REORDER_DATA = "reorder_data"
    PAUSE = "pause"
    HALT = "halt"


class TrainingControl(Protocol):
    """The run, as an action sees it. Each method is idempotent within one plan."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this run can do."""
        ...

    def limit_gate(self, limit: float, first_step: int, last_step: int) -> str:
        """Skip updates with a gradient norm above `limit`, of these steps (both included)."""
        ...

    def rollback(self, snapshot_id: str, step: int) -> str:
        """Take the whole rewound state back to a snapshot, or to one of at most `step`."""
        ...

    def quarantine(self, start: int, stop: int, reason: str) -> str:
        """Set aside the raw stream positions `start` to `stop - 1`."""
        ...

    def scale_lr(
        self, factor: float, first_step: int, hold_steps: int | None = None, ramp_steps: int = 0
    ) -> str:
        """Multiply the learning rate of `hold_steps` steps, and go back over `ramp_steps`."""
        ...

    def cap_lr(
        self, max_lr: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        """Let the learning rate of the first group be at most `max_lr` in these steps."""
        ...

    def tighten_clip(
        self, max_norm: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        """Clip gradients to `max_norm` in these steps, whether the loop clips or not."""
        ...

    def raise_epsilon(
        self, factor: float, least: float, first_step: int, hold_steps: int | None
    ) -> str:
        """Multiply the optimizer's eps by `factor`, and make it at least `least`."""
        ...

    def lower_beta2(self, value: float, first_step: int, hold_steps: int | None) -> str:
        """Let the optimizer's beta2 be at most `value` in these steps."""
        ...

    def shrink_embedding_gradients(
        self, factor: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        """Multiply the gradients of embeddings by `factor` before anything is clipped."""
        ...

    def reset_moments(self, first_step: int, groups: Sequence[str], restart_count: bool) -> str:
        """Begin `first_step` with moments at zero, of these module groups or (empty) of all."""
        ...

    def perturb_weights(self, relative_std: float, first_step: int) -> str:
        """Begin `first_step` with seeded noise on the weights."""
        ...

    def perturb_order(self, position: int) -> str:
        """Give out the data from a raw stream position on in another order."""
        ...

    def pause(self, reason: str, timeout_secs: float) -> str:
        """Wait for a person; halt when none has come in time."""
        ...

    def halt(self, note: str) -> str:
        """Stop the run and hand it over to a person."""
        ...


class Action(ABC):
    """One command; a frozen keyword-only dataclass whose fields are its arguments.

    Attributes:
        name: unique within the family; the file bears the same name.
        needs: capabilities without which it cannot be carried out.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Capability]]

    @abstractmethod
    def apply(self, control: TrainingControl) -> str:
        """Carry it out and say what was done, in one sentence."""


@dataclass(frozen=True, kw_only=True)
class ActionCall:
    """An action by name with its arguments, as a plan holds it and the journal keeps it."""

    name: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {"name": self.name, "arguments": self.arguments}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "ActionCall":
        """Undo `to_json`."""
        return cls(name=str(fields["name"]), arguments=dict(fields["arguments"]))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What policy decided: a list of actions, and why.

    Attributes:
        rung: rung of the escalation ladder, in words ("skip", "rollback", "halt").
        why: the reason, for a person.
        actions: carried out in this order.
        target_step: step that a rollback goes back to, else None.
    """

    rung: str
    why: str
    actions: tuple[ActionCall, ...]
    target_step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {
            "rung": self.rung,
            "why": self.why,
            "actions": [action.to_json() for action in self.actions],
            "target_step": self.target_step,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Plan":
        """Undo `to_json`."""
        return cls(
            rung=str(fields["rung"]),
            why=str(fields["why"]),
            actions=tuple(ActionCall.from_json(action) for action in fields["actions"]),
            target_step=fields["target_step"],
        )
