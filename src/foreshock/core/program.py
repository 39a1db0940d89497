"""The contract of a Program: a training described once, so that every command can run it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a command asks of a program.

    Attributes:
        seed: seed of everything random that the program makes; the driver has already
            seeded the global generators with it.
        device: where to train, e.g. "cpu" or "cuda:0".
        max_steps: optimizer steps that will be run, for schedules.
        overrides: what an experiment changes (lr, width, depth, measures); a program
            reads those it knows with `get`.
    """

    seed: int = 0
    device: str = "cpu"
    max_steps: int = 1000
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def get(self, name: str, default: Any) -> Any:
        """Return the override called `name`, else `default`."""
        return self.overrides.get(name, default)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of one micro-step, with what it is made of.

    Attributes:
        total: `[]` what is differentiated.
        terms: each term, `[]`, by name.
        per_sample: `[B]` loss of each sample, where available.
    """

    total: Any
    terms: Mapping[str, Any] = field(default_factory=dict[str, Any])
    per_sample: Any = None


def as_loss(told: Any, terms: Mapping[str, Any] | None = None) -> Loss:
    """A loss with what it is made of, from a `Loss`, or from a bare tensor and its terms.

    >>> as_loss(2.5, {"ce": 2.0}).terms, as_loss(Loss(total=2.5), {"ce": 2.0}).terms
    ({'ce': 2.0}, {})
    """
    return told if isinstance(told, Loss) else Loss(total=told, terms=terms or {})


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training that can be run again and again in one process.

    Attributes:
        model: the module to train.
        optimizer: its optimizer, or a list of several.
        stream: a `foreshock.Stream` of batches.
        loss: `(model, batch) -> tensor or Loss`.
        scheduler: stepped once a step, or None, or a list of several.
        scaler: a gradient scaler, or None.
        clip: largest gradient norm, or None.
        accumulate: micro-steps in a step.
        precision: how the program computes, for the record ("fp32", "bf16", "fp16").
        held_out: samples never trained on, for probes; a sequence of batches that
            `loss` accepts.
        probes: further probes (`foreshock.core.probe.Probe`), by which a recovery is verified
            and states are compared.
        to_text: sample to text, for data rules and reports; None where there is none.
        terms: names of the loss terms, where `loss` returns a `Loss` with terms.
        per_sample: whether that `Loss` has the loss of each sample.
        track: further state that must be rewound, by name: objects with `state_dict`
            and `load_state_dict`, or random generators.
        name: for the record; the function's name by default.
    """

    model: Any
    optimizer: Any
    stream: Any
    loss: Callable[[Any, Any], Any]
    scheduler: Any = None
    scaler: Any = None
    clip: float | None = None
    accumulate: int = 1
    precision: str = "fp32"
    held_out: Sequence[Any] = ()
    probes: Sequence[Any] = ()
    to_text: Callable[[Any], str] | None = None
    terms: Sequence[str] = ()
    per_sample: bool = False
    track: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = ""


ProgramFunction = Callable[[Settings], Program]
