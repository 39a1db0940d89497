"""Whether a step that is run again from the same state gives the same bits: measured, not assumed.

Restoring a snapshot is bit-exact. What trains from there is so only where every kernel, the data
and the program's own code are; this runs some steps twice and says which holds here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch.utils.hooks import RemovableHandle

from foreshock.core.errors import ConfigError, SnapshotError
from foreshock.core.program import Program
from foreshock.durable import RealDisk
from foreshock.recipes import Recipe, standard
from foreshock.replaying import Replay
from foreshock.replicated import plain_module
from foreshock.snapshots.codec import digest
from foreshock.snapshots.parts import GlobalRandomPart, Part, part_for

NUM_STEPS: Final = 3
"""Our choice: the second step is the first that begins with moments, and costs next to nothing."""
_TOLD: Final = 8
_LOSS: Final = "loss"
_GRADIENT: Final = "gradient/"
_TRAINED: Final = ("model/", "optimizer/")

Leaves = Mapping[str, str]
"""Digest of everything that a step left behind, by name."""


@dataclass(frozen=True, kw_only=True)
class Determinism:
    """What came of running steps twice from one state.

    Attributes:
        equal: whether everything was bit-identical after each of them.
        num_steps: steps that were compared; fewer where the data ends.
        first_step: the first step after which something differed, from 1; None if nothing did.
        where: what differed there first: "forward" (the loss), "backward" (gradients after an
            equal loss), "update" (weights or moments after equal gradients), or "state besides"
            (generators, data, what is tracked).
        differing: names of what differed after it, the first 8: the loss, gradients in the order
            of the backward pass, weights, moments, the rest.
        num_differing: how many did.
        device: where it was measured.
        torch: version of torch.
        num_threads: of the CPU, on which the order of sums may depend.
        deterministic_algorithms: whether torch was told to refuse others.
    """

    equal: bool
    num_steps: int
    first_step: int | None = None
    where: str = ""
    differing: tuple[str, ...] = ()
    num_differing: int = 0
    device: str
    torch: str
    num_threads: int
    deterministic_algorithms: bool

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object; the fields of a `determinism` record."""
        return {**vars(self), "differing": list(self.differing)}

    @property
    def sentence(self) -> str:
        """What may be claimed, for a person."""
        if self.equal:
            return (
                f"{self.num_steps} steps run twice from one state gave the same bits: what is "
                "replayed here is exact"
            )
        named = ", ".join(self.differing[:3])
        more = f" and {self.num_differing - 3} more" if self.num_differing > 3 else ""
        return (
            f"a step run twice from one state gave other bits: after step {self.first_step} the "
            f"{self.where} differs ({named}{more}). A replay is close, not exact"
        )


def check_determinism(
    program: Program, recipe: Recipe | None = None, *, num_steps: int = NUM_STEPS
) -> Determinism:
    """Train the next steps twice from the state as it is, and compare every bit.

    Compared after each step: the loss, gradients, weights, moments, schedule, scaler, generators,
    position in the data and what is tracked. The second time begins with a restored state, as
    after a rollback. Steps are made as a Guard makes them, gate and signals included.

    Afterwards the program is as it was, bit by bit, global generators and modes included; only
    gradients are gone. What a program keeps elsewhere (a counter in its loss, a cache) is not
    put back, and what depends on it is told as different.

    Args:
        program: on one process; nothing of it must be under a Guard.
        recipe: what it is watched with.
        num_steps: steps to compare, at least 1.

    Raises:
        ConfigError: `num_steps` is below 1, or the data does not give one step.
        SnapshotError: the state could not be put back.
        ProgramError: the program's loss raises.
    """
    if num_steps < 1:
        raise ConfigError(f"check_determinism got num_steps={num_steps}; it must be at least 1")
    parts, modes = _parts(program), [(one, one.training) for one in program.model.modules()]
    rules, before = program.stream.rules, _leaves(program, parts)
    replay = Replay(
        program, recipe if recipe is not None else standard(), Path(), (), disk=RealDisk()
    )
    gradients: dict[str, str] = {}
    hooks = list(_noting(program, gradients))

    def trained() -> list[Leaves]:
        found: list[Leaves] = []
        while len(found) < num_steps and (batches := replay.draw()) is not None:
            gradients.clear()
            replay.train(batches)
            loss = replay.losses.get(replay.step)
            told = {} if loss is None else {_LOSS: loss.hex()}
            found.append({**told, **gradients, **_leaves(program, parts)})
        return found

    try:
        replay.keep()
        try:
            first = trained()
            replay.back()
            second = trained()
        finally:
            replay.back()
    finally:
        for hook in hooks:
            hook.remove()
        replay.close()
        program.stream.rules = rules
        for module, mode in modes:
            module.training = mode
    if not first:
        raise ConfigError("the program's data does not give one whole step to run twice")
    if _leaves(program, parts) != before:
        raise SnapshotError("the state could not be put back after steps were run twice")
    return _compared(first, second, program)


def _noting(program: Program, gradients: dict[str, str]) -> Iterator[RemovableHandle]:
    """Note the digest of each whole gradient, in the order of the backward pass."""
    for name, one in plain_module(program.model).named_parameters():
        if not one.requires_grad:
            continue

        def note(parameter: torch.Tensor, name: str = name) -> None:
            gradient = parameter.grad
            if gradient is not None:
                gradients.pop(f"{_GRADIENT}{name}", None)  # it was that of fewer micro-steps
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                gradients[f"{_GRADIENT}{name}"] = digest(dense)

        yield one.register_post_accumulate_grad_hook(note)


def _compared(first: list[Leaves], second: list[Leaves], program: Program) -> Determinism:
    device = next((one.device for one in program.model.parameters()), torch.device("cpu"))
    facts: dict[str, Any] = {
        "num_steps": min(len(first), len(second)),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    for step, (one, other) in enumerate(zip(first, second, strict=False), start=1):
        names = [name for name in [*one, *(other.keys() - one)] if one.get(name) != other.get(name)]
        if names:
            return Determinism(
                equal=False,
                first_step=step,
                where=_where(names),
                differing=tuple(names[:_TOLD]),
                num_differing=len(names),
                **facts,
            )
    return Determinism(equal=len(first) == len(second), **facts)


def _where(names: list[str]) -> str:
    if _LOSS in names:
        return "forward"
    if any(name.startswith(_GRADIENT) for name in names):
        return "backward"
    if any(name.startswith(_TRAINED) for name in names):
        return "update"
    return "state besides"


def _parts(program: Program) -> dict[str, Part]:
    """What is compared, weights first."""
    things: dict[str, Any] = {
        "model": plain_module(program.model),
        "optimizer": program.optimizer,
        "scheduler": program.scheduler,
        "scaler": program.scaler,
        "stream": program.stream,
        **{f"tracked.{name}": one for name, one in program.track.items()},
    }
    found = {name: part_for(name, one) for name, one in things.items() if one is not None}
    return {**found, "random": GlobalRandomPart()}


def _leaves(program: Program, parts: Mapping[str, Part]) -> dict[str, str]:
    """The digest of every leaf of the state, by name."""
    places = {id(one): name for name, one in plain_module(program.model).named_parameters()}
    groups = program.optimizer.param_groups
    order = [places.get(id(one), "") for group in groups for one in group["params"]]
    found: dict[str, str] = {}
    for part, one in parts.items():
        for path, leaf in _flat(one.capture()):
            found["/".join([part, *_named(part, path, order)])] = digest(leaf)
    return found


def _named(part: str, path: tuple[str, ...], order: list[str]) -> tuple[str, ...]:
    """A path with the parameter's name in the place of its number, and without what is clear."""
    match path:
        case ("state", number, *rest) if part == "optimizer" and number.isdigit():
            place = int(number)
            known = order[place] if place < len(order) else ""
            return (known or number, *rest)
        case ("state" | "buffers", *rest) if part == "model":
            return tuple(rest)
        case _:
            return path


def _flat(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of a state tree with their paths; of an empty node, the node."""
    if isinstance(tree, Mapping) and tree:
        for key, value in cast("Mapping[Any, Any]", tree).items():
            yield from _flat(value, (*path, str(key)))
    elif isinstance(tree, list | tuple) and tree:
        for number, value in enumerate(cast("list[Any]", tree)):
            yield from _flat(value, (*path, str(number)))
    else:
        yield path, tree
