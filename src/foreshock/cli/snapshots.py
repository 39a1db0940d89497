"""`foreshock snapshots`: what a run could go back to, and why it would choose which."""

import json as json_format
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from foreshock.core.reading import from_json_whole
from foreshock.core.retention import Stored
from foreshock.core.snapshot import Judged, SnapshotRef, choose_target, in_lineage
from foreshock.durable import RealDisk
from foreshock.files import refuse_links
from foreshock.journal import Journal
from foreshock.report.clean import clean_text
from foreshock.snapshots.labels import Labels

if TYPE_CHECKING:
    from foreshock.run_view import RunView

_DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def command(
    run_dir: Annotated[Path, typer.Argument(help="The run directory; it is only read.")],
    onset: Annotated[
        int | None,
        typer.Option(
            help="Step at which the trouble began; by default that of the last incident, or none.",
            min=1,
        ),
    ] = None,
    failed: Annotated[
        int, typer.Option(help="Recoveries of this trouble that have failed already.", min=0)
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead.")] = False,
) -> None:
    """List a run's durable snapshots, and which would be gone back to, and why.

    Snapshots in memory are not here: they are the running process's own.
    """
    view = Journal.read(RealDisk(), run_dir)
    refuse_links(run_dir / "snapshots")
    rows = _rows(view, onset if onset is not None else _last_onset(view), failed)
    if as_json:
        typer.echo(json_format.dumps(rows, indent=2, allow_nan=False))
    else:
        _show(rows, Console())


def _rows(view: "RunView", onset: int | None, failed: int) -> dict[str, Any]:
    """What is there, newest first, as strict JSON."""
    stored, objections = Labels(view.disk, view.run_dir / "snapshots").all()
    told = _Told(view.records)
    candidates = [one.ref for one in stored if not told.against(one.ref)]
    choice = choose_target(candidates, onset or _next_step(view, candidates), failed)
    judged = {one.ref.id: one for one in choice.judged}
    now = max(told.times.values(), default=0)
    with suppress(*_DAMAGE):
        now = max(now, int(view.records[-1]["time"]))
    newest_first = sorted(stored, key=lambda one: (-one.ref.step, -one.ref.attempt))
    rows = [_row(one, judged.get(one.ref.id), choice.why, told, now) for one in newest_first]
    return {
        "onset_step": onset,
        "chosen": choice.target.id if choice.target is not None else None,
        "resumed_from": max(candidates, key=lambda ref: (ref.step, ref.attempt)).id
        if candidates
        else None,
        "snapshots": rows,
        "unreadable": [str(one) for one in objections],
        "total_bytes": sum(row["size_bytes"] for row in rows),
    }


def _row(
    one: Stored, judged: Judged | None, why_chosen: str, told: "_Told", now: int
) -> dict[str, Any]:
    ref, taken = one.ref, told.times.get(one.ref.id)
    objection = told.against(ref) or (judged.objection if judged is not None else "")
    return {
        **ref.to_json(),
        "where": "disk",
        "size_bytes": told.sizes.get(ref.id) or one.size_bytes,
        "age_secs": None if taken is None else max(0, now - taken),
        "healthy": ref.health.healthy,
        "chosen": judged is not None and not objection,
        "why": objection or why_chosen,
    }


class _Told:
    """What the journal says about snapshots."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.times: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self._bad: dict[str, str] = {}
        self._dropped: set[str] = set()
        self._rollbacks: list[tuple[int, int]] = []
        for record in records:
            with suppress(*_DAMAGE):  # a record that no run writes says nothing
                self._apply(record)

    def _apply(self, record: dict[str, Any]) -> None:
        match record.get("kind"):
            case "snapshot":
                name = str(record["snapshot"]["id"])
                self.times[name] = int(record["time"])
                self.sizes[name] = from_json_whole(record.get("size_bytes", 0))
                self._bad.pop(name, None)
            case "snapshot_passed_over" if record.get("bad") is True:
                self._bad[str(record["snapshot"])] = str(record["reason"])
            case "snapshots_dropped":
                self._dropped.update(str(one["snapshot"]) for one in record["dropped"])
            case "attempt_started":
                self._rollbacks.append((int(record["attempt"]), int(record["step"])))
            case _:
                pass

    def against(self, ref: SnapshotRef) -> str:
        """Why a snapshot would not be read at all, or ""."""
        if ref.id in self._bad:
            return f"damaged: {self._bad[ref.id]}"
        if ref.id in self._dropped:
            return "to be removed"
        if not in_lineage(ref, self._rollbacks):
            return "undone by a rollback"
        return ""


def _next_step(view: "RunView", candidates: list[SnapshotRef]) -> int:
    """The step that comes next, as far as the records tell: trouble begins there at the latest."""
    last = max((ref.step for ref in candidates), default=0)
    with suppress(*_DAMAGE):
        last = max(last, from_json_whole(view.records[-1]["step"]))
    return last + 1


def _last_onset(view: "RunView") -> int | None:
    """The onset of the incident that is open, if one is."""
    onset: int | None = None
    for record in view.records:
        with suppress(*_DAMAGE):
            if record.get("kind") == "plan" and onset is None:
                onset = from_json_whole(record["diagnosis"]["onset_step"])
            elif record.get("kind") == "incident_closed":
                onset = None
    return onset


def _show(found: dict[str, Any], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("", "snapshot", "step", "age", "where", "size"):
        table.add_column(column, justify="right" if column in ("step", "age", "size") else "left")
    table.add_column("healthy or why not", overflow="fold")
    for row in found["snapshots"]:
        ill = "; ".join(row["health"]["concerns"]) or "; ".join(row["health"].get("doubts", ()))
        state = ill or "healthy"
        if row["why"] not in ill and not row["chosen"] and row["healthy"]:
            state = f"{state}; {row['why']}" if ill else row["why"]
        table.add_row(
            "→" if row["chosen"] else "",
            row["id"],
            str(row["step"]),
            _age(row["age_secs"]),
            row["where"],
            _size(row["size_bytes"]),
            clean_text(state),
        )
    console.print(table)
    for line in _below(found):
        console.print(clean_text(line), markup=False)


def _below(found: dict[str, Any]) -> list[str]:
    onset, chosen = found["onset_step"], found["chosen"]
    trouble = f"trouble from step {onset}" if onset is not None else "new trouble"
    lines = [f"{len(found['snapshots'])} snapshots, {_size(found['total_bytes'])} in all."]
    if chosen is not None:
        why = next(row["why"] for row in found["snapshots"] if row["chosen"])
        lines.append(
            f"For {trouble} the run would go back to {chosen}: {why}. (A newer one in memory "
            "goes first, while the process lives.)"
        )
    elif found["snapshots"]:
        lines.append(f"For {trouble} none on disk is fit to go back to.")
    if found["resumed_from"] is not None:
        lines.append(f"A restart goes on from {found['resumed_from']}.")
    return [*lines, *found["unreadable"]]


def _age(secs: int | None) -> str:
    if secs is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if secs >= length:
            return f"{secs / length:.0f} {unit}"
    return f"{secs} s"


def _size(count: int) -> str:
    for unit, length in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} B"
