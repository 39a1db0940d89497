"""What experiments told of an incident, kept in the run directory for reports."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from foreshock.core.cause import Diagnosis
from foreshock.core.errors import RunDirError
from foreshock.core.experiment import Result
from foreshock.core.reading import from_json_number, from_json_text, from_json_whole
from foreshock.durable import Disk, write_file
from foreshock.settling import Settlement

FORMAT: Final = 1
FOLDER: Final = "replays"
_MAX_BYTES: Final = 1 << 24
_MOST: Final = 1000
_DAMAGE: Final = (
    AttributeError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a file of `replays/` says.

    Attributes:
        incident: number of the incident.
        num_plans: plans that it had by then.
        before: the diagnosis without experiments.
        after: with them.
        results: of the experiments that told something, in order.
        refused: why others told nothing, by name.
        is_settled: whether the cause is.
        why: it ended, in words.
        num_steps: steps trained in all.
        exact: whether the steps before the onset were the run's, bit by bit; None if unknown.
    """

    incident: int
    num_plans: int
    before: Diagnosis
    after: Diagnosis
    results: tuple[Result, ...]
    refused: Mapping[str, str]
    is_settled: bool
    why: str
    num_steps: int
    exact: bool | None


def replay_path(run_dir: Path, incident: int) -> Path:
    """Where the experiments of an incident are kept."""
    return run_dir / FOLDER / f"incident-{incident}.json"


def write_replay(
    disk: Disk, run_dir: Path, incident: int, num_plans: int, found: Settlement
) -> Path:
    """Keep what experiments told, in the place of what was kept of this incident before.

    Raises:
        OSError: the disk fails.
    """
    told = {"format": FORMAT, "incident": incident, "num_plans": num_plans, **found.to_json()}
    path = replay_path(run_dir, incident)
    disk.make_dir(path.parent)
    write_file(disk, path, [json.dumps(told, allow_nan=False, indent=1).encode() + b"\n"])
    return path


def read_replay(disk: Disk, run_dir: Path, incident: int) -> Replayed | None:
    """What experiments told of an incident; None if none were kept.

    Raises:
        RunDirError: the file is damaged, or not one that `write_replay` writes.
    """
    path = replay_path(run_dir, incident)
    try:
        if not disk.exists(path):
            return None
        if (size := disk.size(path)) > _MAX_BYTES:
            raise RunDirError(f"{path} has {size} bytes: no such file is larger than {_MAX_BYTES}")
        found = _parsed(json.loads(disk.read(path)))
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGE as error:
        raise RunDirError(
            f"{path} is not what `foreshock replay` writes ({type(error).__name__}: "
            f"{error!s:.200}): remove it, and replay the incident again"
        ) from error
    if found.incident != incident:
        raise RunDirError(f"{path} is of incident {found.incident}: remove it")
    return found


def _parsed(value: Any) -> Replayed:
    fields = cast("dict[str, Any]", value)
    if from_json_whole(fields["format"]) != FORMAT:
        raise ValueError(f"format {fields['format']!r:.80}")
    told: list[Any] = fields["told"]
    if not isinstance(told, list) or len(told) > _MOST:
        raise ValueError("`told` is no list of experiments")
    for one in told:
        for shares in (one["before"], one["after"]):
            for name, share in shares.items():
                from_json_text(name)
                from_json_number(share)
    results = [Result.from_json(one["result"]) for one in told if one["result"] is not None]
    refused = {
        from_json_text(one["experiment"]): from_json_text(one["reason"])
        for one in told
        if one["result"] is None
    }
    exact, settled = fields["exact"], fields["settled"]
    if not isinstance(settled, bool) or not isinstance(exact, bool | None):
        raise TypeError("`exact` or `settled` is neither true nor false")
    return Replayed(
        incident=from_json_whole(fields["incident"]),
        num_plans=from_json_whole(fields["num_plans"]),
        before=Diagnosis.from_json(fields["before"]),
        after=Diagnosis.from_json(fields["after"]),
        results=tuple(results),
        refused=refused,
        is_settled=settled,
        why=from_json_text(fields["why"]),
        num_steps=from_json_whole(fields["num_steps"]),
        exact=exact,
    )
