"""Requests in a run's directory: taken in once, and harmless whatever lies there."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreshock.core.errors import StreamError
from foreshock.core.records import encode_line
from foreshock.data.ledger import Ledger, LedgerEntry
from foreshock.data.minimized import Dropped, Minimized
from foreshock.data.order import Order, SourceShare, StageOrder
from foreshock.data.positions import PositionOrder
from foreshock.data.requests import (
    MAX_BYTES,
    MAX_FINDING_BYTES,
    Request,
    Requests,
    decode,
    ids_done,
    matching,
)
from foreshock.data.returns import watch_steps_for
from foreshock.durable import RealDisk
from tests.data.recovered import closed, finding, planned, reopened

ID = "0123456789abcdef"
RELEASE = Request(request=ID, command="release", entry_id="w")
REFLOW = Request(request="f" * 16, command="reflow", entry_id="w", every_samples=8, watch_steps=16)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def ledger_of():
    stage = StageOrder(name="s", sources=(SourceShare(name="a", num_samples=60),))
    ledger = Ledger(Order([stage], 0))
    ledger.add(LedgerEntry(entry_id="w", reason="spike", window=(4, 10)))
    for index in (50, 51):
        entry = {"entry_id": f"rule/length/a/{index}", "reason": "short", "rule": "length"}
        ledger.add(LedgerEntry(**entry, ids=(("a", index),)))
    return ledger


def test_a_request_is_found_once_and_gone_when_it_is_done(tmp_path: Path):
    disk = RealDisk()
    Requests(disk, tmp_path).leave(RELEASE)
    Requests(disk, tmp_path).leave(REFLOW)
    run = Requests(disk, tmp_path)
    found, refused = run.pending()
    assert found == [RELEASE, REFLOW]
    assert refused == []
    run.finish(RELEASE)
    assert run.pending() == ([REFLOW], [])
    assert names_in(tmp_path / "requests") == [f"{REFLOW.request}.json"]


def test_one_that_the_journal_knows_is_not_done_again_after_a_crash(tmp_path: Path):
    disk = RealDisk()
    Requests(disk, tmp_path).leave(RELEASE)
    records = [{"kind": "alarm"}, {"kind": "released", "request": ID}]
    assert Requests(disk, tmp_path, ids_done(records)).pending() == ([], [])
    assert names_in(tmp_path / "requests") == []


def test_where_nothing_was_asked_nothing_is_touched(tmp_path: Path):
    assert Requests(RealDisk(), tmp_path).pending() == ([], [])
    assert names_in(tmp_path) == []


def fields(**change):
    return {**json.loads(RELEASE.encode()), **change}


def line(**change):
    told = {key: value for key, value in fields(**change).items() if key != "crc"}
    return encode_line({key: value for key, value in told.items() if value is not ...})


HOSTILE = {
    "empty": b"",
    "garbage": bytes(range(200)),
    "not json": b"quarantine release w\n",
    "no checksum": json.dumps(fields()).encode(),
    "wrong checksum": RELEASE.encode().replace(b'"w"', b'"v"'),
    "two lines": RELEASE.encode() * 2,
    "cut off": RELEASE.encode()[:-9],
    "a list": b'[1,2,"crc":"00000000"}\n',
    "deep": b'{"a":' * 5000 + b'"crc":"00000000"}\n',
    "another id": line(request="e" * 16),
    "id is a path": line(request="../../../etc/pw"),
    "unknown command": line(command="run"),
    "command is a list": line(command=["release"]),
    "unknown field": line(shell="rm -rf /"),
    "missing field": line(ids=...),
    "ids are text": line(ids="all"),
    "an index is text": line(ids=[["a", "1"]]),
    "an index is negative": line(ids=[["a", -1]]),
    "an index is huge": line(ids=[["a", 1 << 70]]),
    "an index is NaN": line(ids=[["a", float("nan")]]),
    "ids without entry": line(entry_id=None, ids=[["a", 1]]),
    "entry is a number": line(entry_id=3),
    "reflow at no rate": line(command="reflow"),
    "reflow at a fraction": line(command="reflow", every_samples=0.5, watch_steps=16),
    "watched for ever": line(command="reflow", every_samples=1, watch_steps=10**9),
    "too long": b" " * (MAX_BYTES + 1),
    "ids of nothing": line(ids=[["a", 1]], entry_id=None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_request_is_refused_with_its_reason_and_taken_away(tmp_path: Path, name: str):
    folder = tmp_path / "requests"
    folder.mkdir()
    (folder / f"{ID}.json").write_bytes(HOSTILE[name])
    run = Requests(RealDisk(), tmp_path)
    found, refused = run.pending()
    assert found == []
    ((file, reason),) = refused
    assert file == f"{ID}.json"
    assert 0 < len(reason) < 300
    assert names_in(folder) == []
    assert run.pending() == ([], [])


def test_what_is_no_plain_file_is_passed_over_for_good(tmp_path: Path):
    outside = tmp_path / "secret"
    outside.write_bytes(RELEASE.encode())
    folder = tmp_path / "run" / "requests"
    folder.mkdir(parents=True)
    (folder / "dir.json").mkdir()
    (folder / "dir.json" / "inside").write_text("kept")
    (folder / f"{ID}.json").symlink_to(outside)
    os.mkfifo(folder / "pipe.json")
    (folder / ".half.json.tmp").write_text("being written")
    run = Requests(RealDisk(), tmp_path / "run")
    found, refused = run.pending()
    assert found == []
    assert {name for name, _ in refused} == {"dir.json", f"{ID}.json", "pipe.json"}
    assert run.pending() == ([], [])
    assert outside.read_bytes() == RELEASE.encode()
    assert (folder / "dir.json" / "inside").exists()
    assert (folder / ".half.json.tmp").exists()


def test_a_folder_that_leads_elsewhere_is_not_followed(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{ID}.json").write_bytes(RELEASE.encode())
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "requests").symlink_to(elsewhere)
    requests = Requests(RealDisk(), run_dir)
    assert requests.pending() == ([], [])
    with pytest.raises(StreamError, match="is a link"):
        requests.leave(REFLOW)
    assert names_in(elsewhere) == [f"{ID}.json"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "requests").write_text("a file")
    assert Requests(RealDisk(), tmp_path / "other").pending() == ([], [])


def test_a_flood_is_taken_in_a_part_at_a_time(tmp_path: Path):
    disk = RealDisk()
    (tmp_path / "requests").mkdir()
    for number in range(150):
        (tmp_path / "requests" / f"{number:016x}.json").write_bytes(b"flood")
    run = Requests(disk, tmp_path)
    assert [len(run.pending()[1]) for _ in range(4)] == [64, 64, 22, 0]


def journalled(*told):
    stamp = {"attempt": 1, "step": 7, "time": 0.0}
    return [{"kind": kind, **stamp, **fields} for each in told for kind, fields in each]


def found_line(outer=None, **change):
    found = {**finding(1, {"plan1/0": (("a", 1),)}).to_json(), **change}
    found = {name: value for name, value in found.items() if value is not ...}
    return encode_line({"request": ID, "command": "minimized", "found": found, **(outer or {})})


TOKENS = finding(1, {}).tokens.to_json()
DROP = {"request": ID, "command": "minimize_dropped", "incident": 1, "num_plans": 1}
HOSTILE_FINDINGS = {
    "no finding": encode_line({"request": ID, "command": "minimized"}),
    "a list": found_line({"found": []}),
    "a text": found_line({"found": "all"}),
    "a field too many": found_line(shell="rm"),
    "another field outside": found_line({"ids": None}),
    "a field is missing": found_line(needed=...),
    "incident is a text": found_line(incident="1"),
    "incident is negative": found_line(incident=-1),
    "incident is a fraction": found_line(incident=1.5),
    "incident is true": found_line(incident=True),
    "a flag is a number": found_line(minimal=1),
    "exact is a text": found_line(exact="yes"),
    "given back is a list": found_line(given_back=[["a", 1]]),
    "given back without names": found_line(given_back={"plan1/0": [1, 2]}),
    "given back all": found_line(given_back={"plan1/0": None}),
    "an index is negative": found_line(given_back={"plan1/0": [["a", -1]]}),
    "an index is huge": found_line(given_back={"plan1/0": [["a", 1 << 60]]}),
    "a source is a list": found_line(needed=[[["a"], 1]]),
    "a sample twice": found_line(needed=[["a", 3], ["a", 3]]),
    "given back and needed": found_line(needed=[["a", 1]]),
    "given back and undecided": found_line(undecided=[["a", 1]]),
    "a verdict of a book": found_line(verdict="x" * 5000),
    "tokens are missing": found_line(tokens={}),
    "tokens are NaN": found_line(tokens={**TOKENS, "per_sample": float("nan")}),
    "tokens are negative": found_line(tokens={**TOKENS, "recomputed": -1}),
    "PaLM of three": found_line(tokens={**TOKENS, "palm": [1, 2, 3]}),
    "drop without a reason": encode_line(DROP),
    "drop for a list": encode_line({**DROP, "reason": ["r"]}),
    "drop of a text": encode_line({**DROP, "reason": "r", "incident": "1"}),
    "drop with a field more": encode_line({**DROP, "reason": "r", "ids": None}),
    "deep": b'{"command":"minimized","found":' + b"[" * 50_000 + b'"crc":"00000000"}\n',
    "command is unknown": found_line({"command": "minimised"}),
    "command is nothing": found_line({"command": None}),
    "another id": found_line({"request": "0" * 15}),
    "id is a number": found_line({"request": 7}),
}


@pytest.mark.parametrize("name", HOSTILE_FINDINGS)
def test_what_is_no_finding_is_refused_with_its_reason(tmp_path: Path, name: str):
    folder = tmp_path / "requests"
    folder.mkdir()
    (folder / f"{ID}.json").write_bytes(HOSTILE_FINDINGS[name])
    run = Requests(RealDisk(), tmp_path)
    assert run.look() == []
    assert names_in(folder) == [f"{ID}.json"]
    found, ((file, reason),) = run.pending()
    assert found == []
    assert file == f"{ID}.json"
    assert 0 < len(reason) < 300
    assert names_in(folder) == []


def test_a_finding_survives_its_own_encoding(tmp_path: Path):
    found = finding(1, {"plan1/0": (("a", 1), ("b", 2))}, needed=(("a", 3),), undecided=())
    odd = finding(2, {}, exact=None, minimal=False, without_any=True)
    for one in (Minimized(request=ID, found=found), Minimized(request="e" * 16, found=odd)):
        assert decode(one.encode()) == one
        Requests(RealDisk(), tmp_path).leave(one)
    dropped = Dropped(request="d" * 16, incident=1, num_plans=2, reason="r" * 9000)
    assert decode(dropped.encode()) == dropped
    assert len(dropped.reason) == 500
    Requests(RealDisk(), tmp_path).leave(dropped)
    assert len(Requests(RealDisk(), tmp_path).pending()[0]) == 3
    assert len(Requests(RealDisk(), tmp_path).look()) == 3


def test_a_long_finding_is_taken_and_a_long_request_is_not(tmp_path: Path):
    keys = tuple(("source", number) for number in range(100_000))
    finding_of_many = Minimized(request=ID, found=finding(1, {"plan1/0": keys}))
    assert len(finding_of_many.encode()) > MAX_BYTES
    Requests(RealDisk(), tmp_path).leave(finding_of_many)
    assert Requests(RealDisk(), tmp_path).pending()[0] == [finding_of_many]
    path = tmp_path / "requests" / f"{ID}.json"
    path.write_bytes(line(command="release", ids=[["source", n] for n in range(100_000)]))
    found, ((_, reason),) = Requests(RealDisk(), tmp_path).pending()
    assert found == []
    assert f"longer than {MAX_BYTES}" in reason
    (tmp_path / "requests" / f"{ID}.json").write_bytes(b"x" * (MAX_FINDING_BYTES + 1))
    found, ((_, reason),) = Requests(RealDisk(), tmp_path).pending()
    assert found == []
    assert f"longer than {MAX_FINDING_BYTES}" in reason


def test_a_finding_is_held_against_what_the_incident_set_aside():
    """Window [4, 10) is incident 1's; [20, 24) that of incident 2; a rule holds two more."""
    ledger, told = ledger_of(), [planned(1, 1, (4, 10)), closed(1), planned(2, 2, (20, 24))]
    told.append(closed(2))
    for kind, fields in (one for each in told for one in each):
        if kind == "quarantined":
            ledger.add(LedgerEntry.from_json(fields["entry"]))
    mine, theirs = ledger.samples("plan1/0"), ledger.samples("plan2/0")
    before = ledger.to_json()

    def refused(found, journal=told):
        request = Minimized(request=ID, found=found)
        with pytest.raises(StreamError) as error:
            request.records(ledger, ledger._order, 30, journalled(*journal))
        return str(error.value)

    assert "no incident 3" in refused(finding(3, {}))
    assert "open again" in refused(finding(1, {}), [planned(1, 1, (4, 10))])
    assert "open again" in refused(finding(1, {}), [planned(1, 1, (4, 10)), closed(1, "halted")])
    assert "had 1 plans, and has 2" in refused(
        finding(1, {}), [planned(1, 1, (4, 10)), planned(1, 2, (4, 16)), closed(1)]
    )
    assert "no entry 'plan2/0'" in refused(finding(1, {"plan2/0": theirs}))
    assert "no entry 'rule/length/a/50'" in refused(finding(1, {"rule/length/a/50": ()}))
    assert "no entry 'plan9/0'" in refused(finding(1, {"plan9/0": ()}))
    assert "not set aside" in refused(finding(1, {"plan1/0": theirs}))
    assert "not set aside" in refused(finding(1, {}, needed=theirs[:1]))
    assert "not set aside" in refused(finding(1, {}, undecided=(("zebra", 1),)))
    assert ledger.to_json() == before
    request = Minimized(request=ID, found=finding(1, {"plan1/0": mine[:4]}, needed=mine[4:]))
    kinds = [k for k, _ in request.records(ledger, ledger._order, 30, journalled(*told))]
    assert kinds == ["reflow_started", "minimized"]
    with pytest.raises(StreamError, match="from a loader"):
        request.records(ledger, PositionOrder(), 30, journalled(*told))
    assert not request.must_wait(journalled(*told))
    assert request.must_wait(journalled(*told, reopened(2)))


@given(data=st.binary(max_size=400))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_of_any_origin_are_a_request_or_one_clear_error(data: bytes):
    with pytest.raises(StreamError, match="not a request"):
        decode(data)


@given(at=st.integers(0, 200), byte=st.integers(1, 255))
def test_no_flipped_byte_is_accepted(at: int, byte: int):
    data = bytearray(REFLOW.encode())
    data[at % len(data)] ^= byte
    with pytest.raises(StreamError):
        Request.decode(bytes(data))


def test_a_request_survives_its_own_encoding():
    named = Request(request=ID, command="release", entry_id="w", ids=(("a", 1), ("b", 2)))
    for one in (RELEASE, REFLOW, named, Request(request=ID, command="release", entry_id=None)):
        assert Request.decode(one.encode()) == one


def test_one_that_is_too_long_is_refused_before_it_is_left(tmp_path: Path):
    ids = tuple(("source", n) for n in range(100_000))
    request = Request(request=ID, command="release", entry_id="w", ids=ids)
    with pytest.raises(StreamError, match="name fewer samples"):
        Requests(RealDisk(), tmp_path).leave(request)
    assert names_in(tmp_path) == []


def test_what_a_release_means():
    ledger = ledger_of()
    two = ledger.samples("w")[:2]
    named = Request(request=ID, command="release", entry_id="w", ids=two)
    ((kind, told),) = named.records(ledger, ledger._order, 20)
    expected = {"entry_id": "w", "ids": [list(key) for key in two], "position": 20, "request": ID}
    assert (kind, told) == ("released", expected)
    group = Request(request=ID, command="release", entry_id="rule/length")
    assert [one["entry_id"] for _, one in group.records(ledger, None, 20)] == [
        "rule/length/a/50",
        "rule/length/a/51",
    ]
    everything = Request(request=ID, command="release", entry_id=None)
    assert len(everything.records(ledger, None, 20)) == 3
    ledger.release("w")
    assert len(everything.records(ledger, None, 20)) == 2
    for request, said in (
        (RELEASE, "nothing of it is held"),
        (Request(request=ID, command="release", entry_id="x"), "no entry 'x'"),
        (Request(request=ID, command="release", entry_id="rul"), "no entry 'rul'"),
        (Request(request=ID, command="release", entry_id="w", ids=(("a", 59),)), "not name"),
        (
            Request(request=ID, command="release", entry_id="rule/length", ids=(("a", 50),)),
            "means 2 entries",
        ),
    ):
        with pytest.raises(StreamError, match=said):
            request.records(ledger, None, 20)


def test_entries_of_one_reflow_come_one_after_the_other():
    ledger = ledger_of()
    request = Request(
        request=ID, command="reflow", entry_id="rule", every_samples=8, watch_steps=16
    )
    told = [one for _, one in request.records(ledger, ledger._order, 20)]
    assert [one["start"] for one in told] == [21, 29]
    for _, one in REFLOW.records(ledger, ledger._order, 20):
        assert (one["start"], one["every_samples"], one["watch_steps"]) == (21, 8, 16)
    ledger.release("w")
    with pytest.raises(StreamError, match="nothing of it is left"):
        REFLOW.records(ledger, ledger._order, 20)


def test_names_of_entries():
    ledger = ledger_of()
    assert matching(ledger, None) == ["w", "rule/length/a/50", "rule/length/a/51"]
    assert matching(ledger, "rule/length/a/50") == ["rule/length/a/50"]
    with pytest.raises(StreamError, match="nothing is set aside"):
        matching(Ledger(), None)
    assert [watch_steps_for(n) for n in (1, 16, 40, 1000)] == [16, 16, 40, 100]
