"""`foreshock quarantine`: what is set aside, and how it is given back."""

import json as json_format
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foreshock.core.errors import ConfigError, RunDirError, StreamError
from foreshock.report.clean import clean_text

if TYPE_CHECKING:
    from foreshock.data.account import Account, EntryAccount, SampleAccount
    from foreshock.data.entry import Key
    from foreshock.data.requests import Request
    from foreshock.data.savings import IncidentCost
    from foreshock.journal import RunView

_MAX_ROWS: Final = 1000
_MAX_CHARACTERS: Final = 2000

app = typer.Typer(no_args_is_help=True, help="What is set aside, and how it is given back.")
RunDir = Annotated[Path, typer.Argument(help="The run directory.")]
Entry = Annotated[
    str, typer.Argument(help="An entry, what several have in front, or incident/NUMBER.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command("list")
def list_entries(run_dir: RunDir, as_json: AsJson = False) -> None:
    """List what was set aside, why, what has come of it, and what each incident has cost."""
    from foreshock.data.savings import costs, in_all  # noqa: PLC0415 - starts quickly

    view, account = _look(run_dir)
    trained = view.last_trained()
    per_step = len(trained[max(trained)]) if trained else 0
    found_costs = costs(view.records, account.ledger, per_step)
    if as_json:
        told = {
            "entries": [one.to_json() for one in account.entries()],
            "incidents": [one.to_json() for one in found_costs],
            "in_all": in_all(found_costs),
        }
        print(json_format.dumps(told, allow_nan=False))
        return
    console = Console()
    found = account.grouped()
    if not found:
        console.print("nothing was set aside")
        return
    table = Table("entry", "samples", "window", "by", "reason", "state")
    for one in found[:_MAX_ROWS]:
        table.add_row(*(_cell(text) for text in _row(one)))
    console.print(table)
    if len(found) > _MAX_ROWS:
        console.print(f"and {len(found) - _MAX_ROWS:,} more: see them all with --json")
    held = account.ledger.num_samples
    console.print(f"{held:,} samples are held", markup=False)
    for one in found_costs:
        console.print(_cost_line(one), markup=False)


@app.command("show")
def show(
    run_dir: RunDir,
    entry: Entry,
    text: Annotated[
        int, typer.Option(help="Print the text of so many samples; needs --program.", min=0)
    ] = 0,
    program: Annotated[
        str | None, typer.Option(help="PATH.py:function that returns the run's Program.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Name the samples of an entry by source and index, with what has come of each."""
    from foreshock.data.requests import matching  # noqa: PLC0415 - starts quickly

    view, account = _look(run_dir)
    names = matching(account.ledger, entry, view.records)
    found = [one for name in names for one in account.samples(name)]
    texts = _texts(view, found[:text], program) if text else {}
    if as_json:
        told = [{**one.to_json(), **_text_field(texts, one)} for one in found]
        print(json_format.dumps(told))
        return
    console = Console()
    table = Table("source", "index", "position", "state", "why")
    for one in found[:_MAX_ROWS]:
        table.add_row(*(_cell(cell) for cell in _sample_row(one)))
    console.print(table)
    if len(found) > _MAX_ROWS:
        console.print(f"and {len(found) - _MAX_ROWS:,} more: see them all with --json")
    for one in found[:text]:
        said = texts[one.source, one.index]
        console.print(clean_text(f"\n{one.source}:{one.index}"), style="bold", markup=False)
        console.print(_shown(said), markup=False, highlight=False, soft_wrap=True)


@app.command("release")
def release(
    run_dir: RunDir,
    entry: Annotated[
        str | None, typer.Argument(help="An entry, what several have in front, or incident/NUMBER.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Release all entries.")] = False,
    sample: Annotated[
        list[str] | None, typer.Option(help="SOURCE:INDEX: only this sample of the entry.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give samples back: they train again at their next visit.

    What was skipped is not visited again by that: see `reflow`.
    """
    from foreshock.data.requests import RELEASE, Request  # noqa: PLC0415 - starts quickly

    if everything == (entry is not None):
        raise ConfigError("name an entry to release, or give --all")
    if everything and sample:
        raise ConfigError("--sample names samples of one entry, and goes without --all")
    request = Request(
        request=secrets.token_hex(8),
        command=RELEASE,
        entry_id=entry,
        ids=tuple(map(_key, sample)) if sample else None,
    )
    _ask(run_dir, request, as_json=as_json)


@app.command("reflow")
def reflow(  # noqa: PLR0917 - the options of a command line
    run_dir: RunDir,
    every: Annotated[int, typer.Option(help="Batches from one sample to the next.", min=1)],
    entry: Annotated[
        str | None, typer.Argument(help="An entry, what several have in front, or incident/NUMBER.")
    ] = None,
    incident: Annotated[
        int | None,
        typer.Option(
            help="In place of an entry: what `foreshock minimize` found to be needed for this "
            "incident, or could not clear.",
            min=1,
        ),
    ] = None,
    sample: Annotated[
        list[str] | None, typer.Option(help="SOURCE:INDEX: only this sample.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring samples back one by one in other batches, and watch each.

    One that trains without an alarm is released; one that meets an alarm again stays in
    quarantine for good.
    """
    from foreshock.data.requests import REFLOW, Request  # noqa: PLC0415
    from foreshock.data.returns import watch_steps_for  # noqa: PLC0415

    if (entry is None) == (incident is None):
        raise ConfigError("name an entry to bring back, or give --incident")
    view, _ = _look(run_dir)
    trained = _trained(view)
    num_samples = max(1, len(trained[max(trained)]))
    ids = tuple(map(_key, sample)) if sample else None
    if incident is not None:
        stay = _needed(view, incident)
        if strange := sorted(set(ids or ()) - set(stay)):
            raise ConfigError(f"--sample: of incident {incident} {strange[:3]} do not stay")
        ids = stay if ids is None else ids
    request = Request(
        request=secrets.token_hex(8),
        command=REFLOW,
        entry_id=entry if incident is None else f"incident/{incident}",
        ids=ids,
        every_samples=every * num_samples,
        watch_steps=watch_steps_for(every),
    )
    _ask(run_dir, request, as_json=as_json)


def _needed(view: "RunView", incident: int) -> "tuple[Key, ...]":
    """The samples that the last search for an incident left in quarantine.

    Raises:
        RunDirError: there was no search.
    """
    from foreshock.core.minimal import Minimal  # noqa: PLC0415 - starts quickly
    from foreshock.data.minimized import MINIMIZED, fields_of  # noqa: PLC0415

    told = [one for one in view.records if one["kind"] == MINIMIZED and one["incident"] == incident]
    if not told:
        raise RunDirError(
            f"{view.run_dir}: incident {incident} was not minimized; `foreshock minimize` does it, "
            "and an entry can be brought back as a whole"
        )
    try:
        found = Minimal.from_json(fields_of(told[-1]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunDirError(
            f"{view.run_dir}: its record of incident {incident} is damaged ({error!s:.200})"
        ) from error
    return (*found.needed, *found.undecided)


def _look(run_dir: Path) -> "tuple[RunView, Account]":
    """The run as its directory shows it, with its records vetted."""
    from foreshock.durable import REAL_DISK  # noqa: PLC0415 - the command line starts quickly
    from foreshock.journal import Journal  # noqa: PLC0415

    view = Journal.read(REAL_DISK, run_dir)
    return view, _account(view.run_dir, view.identity, view.records)


def _account(run_dir: Path, identity: dict[str, Any], records: list[dict[str, Any]]) -> "Account":
    from foreshock.data.account import Account  # noqa: PLC0415 - the command line starts quickly
    from foreshock.vetting import vet  # noqa: PLC0415

    vet(records, run_dir)
    description = identity.get("stream")
    if not isinstance(description, dict):
        raise RunDirError(
            f"{run_dir}: this run had a data loader that keeps no state; nothing of its data can "
            "be set aside or given back"
        )
    return Account(description, records)


def _ask(run_dir: Path, request: "Request", *, as_json: bool) -> None:
    """Carry a request out in the journal of a run that stands still, or leave it for one."""
    from foreshock.data.requests import Requests  # noqa: PLC0415 - the command line starts quickly
    from foreshock.durable import REAL_DISK  # noqa: PLC0415
    from foreshock.journal import Journal  # noqa: PLC0415
    from foreshock.run_view import position_after  # noqa: PLC0415

    view, account = _look(run_dir)
    # Against what the journal says now; the run looks again when it takes the request in.
    planned = request.records(account.ledger, account.order, account.position, view.records)
    done = {"request": request.request, "command": request.command, "entries": len(planned)}
    try:
        REAL_DISK.lock(run_dir / "lock").close()
    except RunDirError:
        path = Requests(REAL_DISK, run_dir).leave(request)
        _tell({**done, "taken": "left", "path": str(path)}, as_json=as_json)
        return
    with Journal.open(REAL_DISK, run_dir, None, time.time) as journal:
        attempt = max(journal.last_attempt, 1)
        trained = _trained(view)
        step = max(trained)
        account = _account(run_dir, journal.identity, journal.records)
        position = max(account.position, position_after(trained))
        told = request.records(account.ledger, account.order, position, journal.records)
        for kind, fields in told:
            journal.write(kind, attempt=attempt, step=step, **fields)
        journal.sync()
        if journal.backlog:
            raise RunDirError(f"{run_dir}: the disk did not take it; free some space, and repeat")
    _tell({**done, "taken": "journalled", "position": position}, as_json=as_json)


def _tell(done: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json_format.dumps(done))
        return
    entries = "1 entry" if done["entries"] == 1 else f"{done['entries']:,} entries"
    if done["taken"] == "left":
        print(
            f"The run is going on: the request is in {clean_text(done['path'])}, and is taken in "
            "between two steps."
        )
    elif done["command"] == "release":
        print(f"Released ({entries}): what is ahead of position {done['position']:,} trains again.")
    else:
        print(f"Coming back ({entries}), one by one, from position {done['position']:,} on.")


def _trained(view: "RunView") -> Mapping[int, list[int]]:
    """What the last attempt that trained has trained.

    Raises:
        RunDirError: nothing has trained yet.
    """
    provenance = view.last_trained()
    if not provenance:
        raise RunDirError(f"{view.run_dir}: nothing has trained yet; begin the run first")
    return provenance


def _key(text: str) -> "Key":
    source, colon, index = text.rpartition(":")
    if not colon or not index.isascii() or not index.isdecimal() or len(index) > 15:
        raise ConfigError(f"--sample {text!r:.80} is not of the form SOURCE:INDEX")
    return source, int(index)


def _cost_line(one: "IncidentCost") -> str:
    cost = one.to_json()["tokens"]
    unit = one.to_json()["unit"]
    line = f"incident {one.incident}: {cost['lost']:,} {unit} trained again or held"
    line += f"; PaLM's practice loses {cost['palm'][0]:,} to {cost['palm'][1]:,}"
    if not one.minimized and one.num_held:
        line += "; not minimized yet"
    return line


def _cell(text: str) -> Text:
    return Text(clean_text(text), overflow="fold")


def _row(one: "EntryAccount") -> tuple[str, ...]:
    window = "-" if one.window is None else f"{one.window[0]}-{one.window[1] - 1}"
    by = "-"
    if one.rule is not None:
        by = one.rule
    elif one.incident is not None:
        by = f"incident {one.incident}"
    return one.entry, f"{one.num_samples:,}", window, by, one.reason, one.state


def _sample_row(one: "SampleAccount") -> tuple[str, ...]:
    why = ""
    if one.outcome is not None:
        why = one.outcome.reason
        if one.outcome.loss is not None and one.outcome.batch_median is not None:
            why += f"; loss {one.outcome.loss:.4g}, beside it {one.outcome.batch_median:.4g}"
    place = "-" if one.position is None else str(one.position)
    return one.source, str(one.index), place, one.state, why


def _texts(
    view: "RunView", samples: "list[SampleAccount]", program: str | None
) -> "dict[Key, str | None]":
    """The texts of samples, out of the run's own program: it is executed."""
    if program is None:
        raise ConfigError("--text needs --program PATH.py:function: the run keeps no data itself")
    from foreshock.core.program import Settings  # noqa: PLC0415 - starts without torch
    from foreshock.driver import build, load_program  # noqa: PLC0415

    seed = view.identity["stream"].get("seed")
    built = build(load_program(program), Settings(seed=seed if type(seed) is int else 0))
    if built.stream.describe()["fingerprint"] != view.identity["stream"].get("fingerprint"):
        raise StreamError(f"{program}: its data is not that of the run, so its samples are others")
    return {
        (one.source, one.index): built.stream.text_of((one.source, one.index)) for one in samples
    }


def _text_field(texts: "dict[Key, str | None]", one: "SampleAccount") -> dict[str, Any]:
    key = (one.source, one.index)
    return {"text": texts[key]} if key in texts else {}


def _shown(text: str | None) -> str:
    if text is None:
        return "(no text: give the Program a to_text)"
    more = len(text) - _MAX_CHARACTERS
    shown = clean_text(text[:_MAX_CHARACTERS])
    return f"{shown}\n… and {more:,} characters more" if more > 0 else shown
