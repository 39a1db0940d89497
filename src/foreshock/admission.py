"""Admission: what a run is, what its loop can do, and whether it may begin."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import foreshock
from foreshock.catalog import members
from foreshock.core.action import Capability
from foreshock.core.errors import CapabilityError, ConfigError, RunDirError
from foreshock.core.override import Reorderable
from foreshock.core.policy import Policy
from foreshock.data.loader import LoaderStream
from foreshock.data.stream import Stream
from foreshock.durable import Disk
from foreshock.journal import Journal
from foreshock.policy_tables import check_actions
from foreshock.several import SeveralSchedulers
from foreshock.update import Update
from foreshock.vetting import vet


def capabilities_of(update: Update, stream: Stream | LoaderStream | None) -> frozenset[Capability]:
    """What a loop with this optimizer and this data lets Foreshock do."""
    found = update.capabilities | {Capability.HALT, Capability.PAUSE}
    if stream is None:
        return found
    found |= {Capability.REWIND_STATE, Capability.REWIND_DATA, Capability.QUARANTINE_DATA}
    if stream.quarantines_by == "position":
        found |= {Capability.QUARANTINE_BY_POSITION}
    return found | {Capability.REORDER_DATA} if isinstance(stream, Reorderable) else found


def check_policy(
    policy: Policy,
    capabilities: frozenset[Capability],
    *,
    resume: bool,
    why_not_rewindable: str = "",
) -> None:
    """Refuse a policy that the loop cannot carry out: now, not at 3 a.m.

    Raises:
        CapabilityError: an action that the policy may order, or a resume, needs what the
            loop lacks.
    """
    check_actions(policy)
    because = f": {why_not_rewindable}" if why_not_rewindable else ""
    if resume and Capability.REWIND_DATA not in capabilities:
        raise CapabilityError(
            "a loop that owns its data loader cannot be resumed by the Guard; begin in a new "
            f"run_dir{because}"
        )
    known = members("actions")
    for name in sorted(policy.actions):
        missing = known[name].needs - capabilities
        if missing:
            raise CapabilityError(
                f"the policy may order {name!r}, which needs {', '.join(sorted(missing))}; give "
                f"the Guard a foreshock.Stream, or a policy with can_rollback=False{because}"
            )


def check_scheduler(scheduler: Any) -> None:
    """Refuse a scheduler that cannot be stepped once a step.

    Raises:
        ConfigError: it needs a metric.
    """
    members = scheduler.members if isinstance(scheduler, SeveralSchedulers) else (scheduler,)
    if any(isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau) for one in members):
        raise ConfigError(
            "ReduceLROnPlateau needs a metric at each step, which the Guard does not have; use a "
            "scheduler of the step number"
        )


def run_identity(
    name: str, parts: Mapping[str, Any], *, accumulate: int, lag_steps: int
) -> dict[str, Any]:
    """What a run is: a run directory is only resumed by the same program on the same data."""
    model, stream = parts["model"], parts.get("stream")
    kinds = {key: type(part).__name__ for key, part in parts.items() if key != "model"}
    shapes = {path: list(parameter.shape) for path, parameter in model.named_parameters()}
    return {
        "foreshock": foreshock.__version__,
        "torch": torch.__version__,
        "program": name or type(model).__name__.removeprefix("FSDP"),  # as FSDP2 renames it
        "fingerprint": {**kinds, "parameters": shapes},
        "stream": stream.describe() if stream is not None else None,
        "settings": {"accumulate": accumulate, "lag_steps": lag_steps},
    }


def open_journal(
    disk: Disk,
    run_dir: Path,
    identity: dict[str, Any],
    clock: Callable[[], float],
    *,
    resume: bool,
) -> Journal:
    """Begin the journal of a new run, or take up that of an earlier one.

    Raises:
        RunDirError: the directory cannot be used or written.
        JournalError: a record is not one that a run writes.
    """
    try:
        if resume:
            journal = Journal.open(disk, run_dir, identity, clock)
            try:
                vet(journal.records, journal.run_dir)
            except BaseException:
                journal.close()
                raise
            return journal
        return Journal.create(disk, run_dir, identity, clock)
    except OSError as error:
        raise RunDirError(f"{run_dir} cannot be written: {error.strerror or error}") from error
