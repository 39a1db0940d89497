"""Run directories from someone else: one clear sentence, and nothing outside touched."""

import copy
import json
import os
import shutil
import struct
import sys
import zlib
from pathlib import Path

import pytest

from foreshock.cli.main import app
from foreshock.core.action import ActionCall, Plan
from foreshock.core.errors import (
    ForeshockError,
    JournalError,
    RunDirError,
    SnapshotError,
    StreamError,
)
from foreshock.core.incident import IncidentBook
from foreshock.core.records import FORMAT
from foreshock.data.order import Order
from foreshock.durable import RealDisk
from foreshock.journal import Journal, decode_line, encode_line
from foreshock.provenance import samples_of
from foreshock.report.html import read_held_out
from foreshock.report.summary import summarise
from foreshock.vetting import MAX_SET_ASIDE, vet
from tests.guard.programs import guarded, make, run
from tests.report import runs

NASTY = [None, -1, 2**70, 10**4000, 1e308, "NaN", "[/x]\x1b[31m", [], {}, [[]], True]


def short(value):
    return f"{value!r:.20}"


STREAM = Order.from_description(
    {
        "format": "foreshock-order-1",
        "seed": 0,
        "stages": [
            {
                "name": "a",
                "sources": [{"name": "[/x]\x1b[31m", "num_samples": 64, "share": None}],
                "num_samples": None,
                "repeats": None,
            }
        ],
    }
).describe()


@pytest.fixture
def told(tmp_path):
    return runs.one_rollback(tmp_path / "told").run_dir


def records_of(folder):
    lines = (folder / "decisions.jsonl").read_bytes().splitlines(keepends=True)
    records = [decode_line(line) for line in lines]
    return [{k: v for k, v in one.items() if k != "unsynced_bytes"} for one in records]


def write_records(folder, records):
    (folder / "decisions.jsonl").write_bytes(b"".join(map(encode_line, records)))


def resume(folder):
    training = make()
    return run(training, guarded(training, folder, max_steps=23, resume=True))


def refused(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        app([str(one) for one in arguments])
    said = capsys.readouterr()
    assert left.value.code == 2, said
    assert said.err.startswith("foreshock: ") and said.err.count("\n") == 1
    assert "Traceback" not in said.err and "\x1b[31m" not in said.err
    return said.err


def unharmed(outside):
    assert {path.name: path.read_text() for path in outside.iterdir()} == {
        "precious": "precious",
        ".precious.tmp": "precious",
    }


# ---- links, pipes and devices


@pytest.mark.parametrize("name", ["decisions.jsonl", "run.json", "lock", "readings", "snapshots"])
def test_a_resume_writes_through_no_link(theirs, outside, name):
    target = outside if (theirs / name).is_dir() else outside / "precious"
    if target == outside:
        shutil.rmtree(theirs / name)
    else:
        (theirs / name).unlink()
    (theirs / name).symlink_to(target)
    with pytest.raises(ForeshockError):
        resume(theirs)
    unharmed(outside)


def test_a_new_run_writes_through_no_link(tmp_path, outside):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(outside / "precious")
    training = make()
    with pytest.raises(RunDirError):
        guarded(training, tmp_path / "run", max_steps=1)
    unharmed(outside)


def test_the_report_writes_through_no_link(told, outside, capsys):
    pytest.importorskip("bokeh")
    (told / ".report.html.tmp").symlink_to(outside / "precious")
    refused(capsys, "report", told)
    unharmed(outside)


def test_a_snapshot_that_is_a_link_is_neither_read_nor_removed(theirs, outside):
    for path in (theirs / "snapshots").iterdir():
        shutil.move(path, outside.parent / path.name)
        path.symlink_to(outside.parent / path.name)
    before = sorted(outside.parent.glob("0*/*"))
    with pytest.raises(SnapshotError, match="symbolic link"):
        resume(theirs)
    assert before and sorted(outside.parent.glob("0*/*")) == before


@pytest.mark.parametrize(
    "name", ["run.json", "decisions.jsonl", "readings/attempt-00001/000000001.bin"]
)
@pytest.mark.parametrize("kind", ["pipe", "folder", "endless"])
def test_what_is_no_plain_file_is_not_waited_for(told, capsys, name, kind):
    path = told / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    if name.startswith("readings"):
        notes = summarise(Journal.read(RealDisk(), told)).notes
        assert any("cannot be read" in note for note in notes)
    else:
        refused(capsys, "report", told, "--text")


def test_a_file_in_place_of_a_folder(told, capsys):
    (told / "data").rmdir()
    (told / "data").write_text("")
    refused(capsys, "report", told, "--text")


def test_demo_figures(tmp_path):
    path = tmp_path / "demo.json"
    os.mkfifo(path)
    assert "cannot be shown" in read_held_out(path)[1][0]
    path.unlink()
    path.write_text(json.dumps({"curves": {str(i): [[1, 2.0]] for i in range(100)}}))
    assert "too many" in read_held_out(path)[1][0]


# ---- samples


def with_data(folder, stream, positions=((1, 8),)):
    identity = json.loads((folder / "run.json").read_text()) | {"stream": stream}
    (folder / "run.json").write_text(json.dumps(identity))
    with Journal.open(RealDisk(), folder, None, lambda: 0.0) as journal:
        for start, stop in positions:
            journal.open_provenance(journal.last_attempt + 1)
            journal.append_provenance(3, range(start, stop))


def test_names_are_shown_as_they_are(told, capsys):
    with_data(told, STREAM)
    with pytest.raises(SystemExit) as left:
        app(["samples", str(told), "--step", "3"])
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert "[/x]" in out and "\x1b[31m" not in out


def test_samples_of_an_attempt_that_was_cut_off_before_its_first_step(told):
    with_data(told, STREAM)
    found = samples_of(Journal.read(RealDisk(), told), 3)  # attempts 1 and 2 have no data file
    assert len(found) == 7


def test_a_few_bytes_claim_no_unbounded_number_of_samples(told, capsys):
    with_data(told, STREAM)
    for attempt in range(50, 59):
        head = json.dumps({"attempt": attempt}).encode()
        head = struct.pack("<8sII", b"FSHKDATA", FORMAT, len(head)) + head
        body = struct.pack("<IqqI", 1, 3, 0, 1 << 17)
        data = head + struct.pack("<I", zlib.crc32(head)) + body
        name = told / "data" / f"attempt-{attempt:05d}.bin"
        name.write_bytes(data + struct.pack("<I", zlib.crc32(body)))
    view = Journal.read(RealDisk(), told)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Order, "locate", lambda *_: ("a", "b", 0))
        with pytest.raises(JournalError, match="name one"):
            samples_of(view, 3)


def places(value, before=()):
    """Every place in a JSON value."""
    if before:
        yield before
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, item in items:
        yield from places(item, (*before, key))


def altered(value, place, new):
    value = copy.deepcopy(value)
    at = value
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = new
    return value


@pytest.mark.parametrize("new", [*NASTY, float("nan"), float("inf"), 1 << 63], ids=short)
def test_a_stream_is_described_or_refused(new):
    for place in places(STREAM):
        try:
            order = Order.from_description(altered(STREAM, place, new))
            order.locate(5)
        except StreamError as error:
            assert len(str(error)) < 5000


def test_a_mixture_of_very_many_sources_is_told_soon():
    sources = [{"name": f"{i}", "num_samples": 3, "share": None} for i in range(20_000)]
    stage = {**STREAM["stages"][0], "sources": sources}
    Order.from_description({**STREAM, "stages": [stage]}).locate(5)


# ---- records


def test_many_plans_and_alarms_are_told_soon(told):
    records = records_of(told)
    plan = next(one for one in records if one["kind"] == "plan")
    book = IncidentBook()
    for number in range(3000):
        alarms = [runs.alarm_json("loss/global", number * 9 + i, 9.0) for i in range(9)]
        book.apply({**plan, "plan_id": number, "alarms": alarms})
    book.apply({**plan, "alarms": alarms})
    assert len(book.incidents[0].alarms) == 27_000


@pytest.mark.parametrize("new", NASTY, ids=short)
def test_a_record_of_the_wrong_types_is_told_or_passed_over(told, new):
    records = records_of(told)
    at = next(i for i, one in enumerate(records) if one["kind"] == "plan")
    places_of_it = [p for p in places(records[at]) if "diagnosis" in p or len(p) < 3]
    for place in places_of_it:
        write_records(told, [*records[:at], altered(records[at], place, new), *records[at + 1 :]])
        summary = summarise(Journal.read(RealDisk(), told))
        json.dumps(summary.to_json(), allow_nan=False)


def stamped(kind, **fields):
    return {"kind": kind, "time": 1.0, "attempt": 1, "step": 21, **fields}


def entry(start, stop):
    return {"entry_id": "e", "reason": "r", "ids": [], "window": [start, stop]} | dict.fromkeys(
        ("incident", "rule")
    )


def plan_of(name, **arguments):
    call = ActionCall(name=name, arguments=arguments)
    plan = Plan(rung="rollback", why="w", actions=(call,), target_step=20)
    return stamped(
        "plan",
        incident=1,
        plan_id=1,
        position=80,
        plan=plan.to_json(),
        diagnosis=runs.diagnosis(19).to_json(),
        alarms=[runs.alarm_json("loss/global", 20, 9.0)],
        last_alarm_step=20,
    )


ENTRY = entry(0, 10**15)
HOSTILE = {
    "no kind": {"attempt": 1, "step": 1},
    "no attempt": {"kind": "attempt_started", "step": 1},
    "huge attempt": stamped("attempt_started") | {"attempt": 10**300},
    "negative step": stamped("attempt_started") | {"step": -1},
    "endless window": stamped("quarantined", key="k", entry=ENTRY),
    "endless window of a plan": plan_of("quarantine", start=0, stop=10**15, reason="r"),
    "rate of nothing": stamped("lr_scaled", key="k", factor=0, first_step=1),
    "rate of NaN": stamped("lr_scaled", key="k", factor="NaN", first_step=1),
    "huge rate of a plan": plan_of("scale_lr", factor=1e308, first_step=1),
    "gate of NaN": stamped("gate_limited", limit="NaN", first_step=1, last_step=2),
    "gate of text": plan_of("skip_update", limit="x", first_step=1, last_step=2),
    "snapshot of no name": plan_of("rollback", snapshot_id=["../../x"], step=20),
    "done before it was planned": stamped("action_done", result="done"),
    "no note": stamped("halted", note=["x"]),
    "no measurement": stamped("measured_before", snapshot="s", values={"p": "x"}, neighbours=[]),
    "entry of no type": stamped("rejected", position=1, entry=[]),
}


@pytest.mark.parametrize("record", HOSTILE.values(), ids=HOSTILE)
def test_a_resume_refuses_what_no_run_writes(theirs, record):
    write_records(theirs, [*records_of(theirs), record])
    before = {path: path.read_bytes() for path in theirs.rglob("*.bin")}
    with pytest.raises(JournalError, match="not what a run writes"):
        resume(theirs)
    assert {path: path.read_bytes() for path in theirs.rglob("*.bin")} == before


def test_a_path_in_a_plan_leads_nowhere(theirs, outside):
    plan = plan_of("rollback", snapshot_id="../../outside", step=20)
    write_records(theirs, [*records_of(theirs)[:-1], plan])
    resume(theirs)  # it goes back to the snapshot of step 20 instead
    unharmed(outside)


def test_windows_are_bounded_together():
    half = MAX_SET_ASIDE // 2 + 1
    many = [stamped("quarantined", key=str(i), entry=entry(0, half)) for i in range(2)]
    vet(many[:1], Path("run"))
    with pytest.raises(JournalError, match="in all"):
        vet(many, Path("run"))


def test_what_a_file_says_drives_no_terminal(told, capsys):
    description = {**STREAM, "format": 1}
    with_data(told, description)
    assert "format=1" in refused(capsys, "samples", told, "--step", "3")
    shutil.rmtree(told / "data")
    (told / "run.json").write_text("[" * sys.getrecursionlimit() * 100)
    refused(capsys, "samples", told, "--step", "3")
