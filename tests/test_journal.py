"""What the journal promises: through crashes, full disks, damage and hostile bytes."""

import json
import math
import random
import shutil
import struct
import subprocess
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foreshock.core import records
from foreshock.core.errors import JournalError, RunDirError
from foreshock.durable import Disk, RealDisk
from foreshock.journal import (
    Journal,
    decode_line,
    encode_line,
    number,
    read_provenance,
)
from tests.simulated_disk import PowerLoss, SimulatedDisk, disk_full

RUN = Path("/runs/a")
DECISIONS = RUN / "decisions.jsonl"
READINGS = RUN / "readings" / "attempt-00001" / "000000001.bin"
PROVENANCE = RUN / "data" / "attempt-00001.bin"
IDENTITY = {
    "version": "0.1.0",
    "program": "train.py:program",
    "fingerprint": "c0ffee",
    "stream": {"sources": ["a", "b"], "seed": 1},
    "settings": {"lr": 3e-4},
}
SEEDS = st.integers(0, 1 << 32)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.dictionaries(st.text().filter(lambda key: key != "crc"), VALUES, max_size=5)


def read_readings(disk: Disk, path: Path) -> records.ReadingBlock:
    return records.decode_readings(disk.read(path), str(path))


def clock() -> float:
    return 12.5


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


def plain(value: Any) -> Any:
    """What a record looks like once it was written and read."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def silent(_: str) -> None: ...


def created(disk: Disk, warn: Callable[[str], None] = silent) -> Journal:
    return Journal.create(disk, RUN, IDENTITY, clock, warn=warn)


def resumed(disk: Disk) -> Journal:
    return Journal.open(disk, RUN, IDENTITY, clock, warn=silent)


def written(journal: Journal, *marks: int) -> None:
    for mark in marks:
        journal.write("note", attempt=1, step=mark, mark="x" * mark)


# Lines.


@settings(deadline=None)
@given(RECORDS)
@example({})
@example({"a": '","crc":"00000000"}'})
def test_a_line_is_strict_json_and_reads_back(record: dict[str, Any]) -> None:
    line = encode_line(record)
    assert line.isascii()
    assert line.index(b"\n") == len(line) - 1
    parsed = json.loads(line, parse_constant=refuse)
    del parsed["crc"]
    assert parsed == decode_line(line) == plain(record)


@settings(deadline=None)
@given(RECORDS, st.integers(0), st.integers(1, 255))
def test_a_line_with_any_byte_changed_is_refused(
    record: dict[str, Any], where: int, change: int
) -> None:
    line = bytearray(encode_line(record))
    line[where % len(line)] ^= change
    with pytest.raises(JournalError):
        decode_line(bytes(line))


@settings(deadline=None)
@given(st.binary())
@example(b'{"crc":"')
@example(b"[" * 100_000)
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    for line in (data, forged_line(data)):
        with suppress(JournalError):
            assert isinstance(decode_line(line), dict)


def forged_line(body: bytes) -> bytes:
    return body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body[:-1] + b"}")


@pytest.mark.parametrize(
    "body",
    [b'{"a":NaN}', b'{"a":' + b"9" * 5000 + b"}", b"[1}", b"}"],
    ids=["nan", "huge", "list", "empty"],
)
def test_a_right_checksum_over_what_is_no_record(body: bytes) -> None:
    with pytest.raises(JournalError):
        decode_line(forged_line(body))


def test_numpy_and_tuples_are_written_as_json() -> None:
    record = {
        "scalar": np.float32(0.5),
        "count": np.int64(7),
        "array": np.array([1.0, np.nan]),
        "pair": (1, math.inf),
    }
    expected = {"scalar": 0.5, "count": 7, "array": [1.0, "NaN"], "pair": [1, "Infinity"]}
    assert decode_line(encode_line(record)) == expected


@pytest.mark.parametrize(
    "value",
    [object(), b"bytes", {1: 2}, {"a": {2, 3}}, 1j, pytest.param(10**5000, id="huge"), Path("a")],
)
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(JournalError):
        encode_line({"field": value})


def test_jq_reads_every_line() -> None:
    jq = shutil.which("jq")
    if jq is None:
        pytest.skip("jq is not installed")
    lines = b"".join(encode_line({"value": value}) for value in (math.nan, -math.inf, "é\n\0"))
    done = subprocess.run([jq, "-c", ".value"], input=lines, capture_output=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == ["NaN", "-Infinity", "é\n\0"]


def test_number() -> None:
    assert math.isnan(number("NaN"))
    assert [number(value) for value in ("Infinity", "-Infinity", 3, 2.5)] == [
        math.inf,
        -math.inf,
        3.0,
        2.5,
    ]
    for wrong in ("nan", "3", None, True, [], 10**400):
        with pytest.raises(JournalError, match="is not a number"):
            number(wrong)


# Creating and opening.


@dataclass
class Place:
    disk: Disk
    run_dir: Path


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "real":
        disk = RealDisk()
        yield Place(disk, tmp_path / "runs" / "a")
        disk.close()
    else:
        yield Place(SimulatedDisk(), RUN)


def test_a_whole_run(place: Place) -> None:
    disk, run_dir = place.disk, place.run_dir
    with Journal.create(disk, run_dir, IDENTITY, clock) as journal:
        first = journal.write("alarm", attempt=1, step=3, value=math.nan)
        assert first == {"kind": "alarm", "time": 12.5, "attempt": 1, "step": 3, "value": "NaN"}
        journal.open_readings(1, ["loss/global", "grad_norm/global"])
        journal.append_reading(3, 1, np.array([np.nan, -np.inf], np.float32))
        journal.append_reading(4, -1, np.array([1.5, 2.5], np.float32))
        journal.open_provenance(1)
        journal.append_provenance(3, [7, 8, 9, 4])
        journal.append_provenance(3, [10])
        journal.append_provenance(4, [])
    with Journal.open(disk, run_dir, IDENTITY, clock) as journal:
        assert (journal.records, journal.last_attempt) == ([first], 1)
        journal.write("resume", attempt=2, step=4, durable=False)
        with pytest.raises(JournalError, match="next free one is 3"):
            journal.open_readings(1, ["loss/global"])
        live = Journal.read(disk, run_dir)  # while the run goes on
        assert live.records == journal.records
    view = Journal.read(disk, run_dir)
    assert view.identity == {"format": records.FORMAT, **IDENTITY}
    assert [record["kind"] for record in view.records] == ["alarm", "resume"]
    assert (view.attempts(), view.torn_bytes) == ([1, 2], 0)
    block = view.readings(1)
    assert (block.attempt, block.series) == (1, ("loss/global", "grad_norm/global"))
    assert block.steps.tolist() == [3, 4]
    assert block.flags.tolist() == [1, -1]
    np.testing.assert_array_equal(block.values, np.array([[np.nan, -np.inf], [1.5, 2.5]]))
    assert block.torn_bytes == 0
    assert dict(view.provenance(1)) == {3: [7, 8, 9, 4, 10], 4: []}
    with pytest.raises(FileNotFoundError):
        view.readings(2)


def test_create_refuses_a_directory_in_use(place: Place) -> None:
    disk, run_dir = place.disk, place.run_dir
    disk.make_dir(run_dir)
    disk.write(run_dir / "notes.txt", [b"mine"])
    with pytest.raises(RunDirError, match=r"not empty \(it holds notes.txt\): choose"):
        Journal.create(disk, run_dir, IDENTITY, clock)
    disk.remove(run_dir / "notes.txt")
    journal = Journal.create(disk, run_dir, IDENTITY, clock)
    for attempt in (Journal.create, Journal.open):
        with pytest.raises(RunDirError, match="in use by"):
            attempt(disk, run_dir, IDENTITY, clock)
    journal.close()
    with pytest.raises(RunDirError, match="--resume"):
        Journal.create(disk, run_dir, IDENTITY, clock)
    with pytest.raises(RunDirError, match="is a file"):
        Journal.create(disk, run_dir / "run.json", IDENTITY, clock)
    resumed_journal = Journal.open(disk, run_dir, None, clock)
    resumed_journal.close()


def test_open_refuses_what_is_not_this_run(place: Place) -> None:
    disk, run_dir = place.disk, place.run_dir
    with pytest.raises(RunDirError, match="is not a Foreshock run directory"):
        Journal.open(disk, run_dir, IDENTITY, clock)
    Journal.create(disk, run_dir, IDENTITY, clock).close()
    other = IDENTITY | {"fingerprint": "decaf", "stream": None, "version": "9", "settings": {}}
    with pytest.raises(RunDirError, match=r"another fingerprint and stream \(fingerprint was 'c0"):
        Journal.open(disk, run_dir, other, clock)
    Journal.open(disk, run_dir, IDENTITY | {"version": "9"}, clock).close()
    for text in (b'{"format":1}', b"[]", b'{"format":"1"}', b"{}"):
        disk.write(run_dir / "run.json", [text])
        with pytest.raises(RunDirError, match="this Foreshock reads format 2"):
            Journal.open(disk, run_dir, None, clock)
    for text in (b"", b"{", b"\xff", b"[" * 100_000):
        disk.write(run_dir / "run.json", [text])
        with pytest.raises(RunDirError, match="is not JSON"):
            Journal.read(disk, run_dir)


def test_what_a_crash_left_behind_is_no_obstacle(place: Place) -> None:
    disk, run_dir = place.disk, place.run_dir
    disk.make_dir(run_dir)
    disk.write(run_dir / ".run.json.tmp", [b"{"])
    Journal.create(disk, run_dir, IDENTITY, clock).close()
    disk.write(run_dir / ".decisions.jsonl.tmp", [b""])
    disk.make_dir(run_dir / "readings" / "attempt-00001")
    disk.write(run_dir / "readings" / "attempt-00001" / ".000000001.bin.tmp", [b"FSHK"])
    Journal.open(disk, run_dir, IDENTITY, clock).close()
    assert disk.list(run_dir / "readings" / "attempt-00001") == []
    assert not disk.exists(run_dir / ".decisions.jsonl.tmp")


def test_reserved_fields_are_refused() -> None:
    journal = created(SimulatedDisk())
    for name in ("crc", "time", "unsynced_bytes"):
        with pytest.raises(JournalError, match=f"reserved field {name}"):
            journal.write("note", attempt=1, step=1, **{name: 1})
    assert journal.records == []


# Damage to decisions.


@settings(deadline=None)
@given(st.integers(1, 200))
def test_a_torn_end_is_cut(lost: int) -> None:
    disk = SimulatedDisk()
    journal = created(disk)
    written(journal, 1, 2, 3)
    journal.close()
    size = disk.size(DECISIONS)
    disk.truncate(DECISIONS, size - lost)
    whole = disk.read(DECISIONS).count(b"\n")
    view = Journal.read(disk, RUN)
    again = resumed(disk)
    assert len(again.records) == len(view.records) == whole
    assert view.torn_bytes == again.torn_bytes == len(disk_tail(size - lost, again.records))
    written(again, 9)
    again.close()
    assert [record["step"] for record in Journal.read(disk, RUN).records][-1] == 9


def disk_tail(size: int, whole: list[dict[str, Any]]) -> bytes:
    return bytes(size - sum(len(encode_line(record)) for record in whole))


@settings(deadline=None)
@given(st.integers(0, 2), st.integers(0), st.integers(1, 255), st.booleans())
def test_damage_to_a_record_that_was_safe(
    line: int, where: int, change: int, durable: bool
) -> None:
    """It is refused wherever a record written after the sync stands behind it."""
    disk = SimulatedDisk()
    journal = created(disk)
    written(journal, 1, 2, 3)
    journal.write("last", attempt=1, step=4, durable=durable)
    journal.close()
    lines = disk.read(DECISIONS).splitlines(keepends=True)
    damaged = bytearray(lines[line])
    damaged[where % (len(damaged) - 1)] ^= change  # the newline stays, and with it the number
    if b"\n" in damaged[:-1]:
        return
    lines[line] = bytes(damaged)
    disk.write(DECISIONS, lines)
    for look in (lambda: resumed(disk), lambda: Journal.read(disk, RUN)):
        with pytest.raises(JournalError, match=rf"decisions.jsonl, line {line + 1} is damaged"):
            look()
    disk.lock(RUN / "lock").close()  # a refused run is not left locked


def test_a_bad_checksum_on_the_last_line_is_a_torn_end() -> None:
    disk = SimulatedDisk()
    journal = created(disk)
    written(journal, 1, 2)
    journal.close()
    data = disk.read(DECISIONS)
    disk.write(DECISIONS, [data[:-4], b"!!!\n"])
    assert [record["step"] for record in resumed(disk).records] == [1]


# Power loss and kill -9 at any operation.


@settings(max_examples=400, deadline=None)
@given(
    seed=SEEDS,
    ops=st.integers(0, 70),
    hiccup=st.none() | st.integers(0, 60),
    durables=st.lists(st.booleans(), max_size=10),
    killed=st.booleans(),
)
@example(seed=0, ops=0, hiccup=16, durables=[False], killed=True)  # a file's name, not synced
@example(seed=1, ops=0, hiccup=6, durables=[False] * 3, killed=False)  # a folder's, likewise
def test_what_was_reported_durable_is_there_after_a_crash(
    seed: int, ops: int, hiccup: int | None, durables: list[bool], killed: bool
) -> None:
    disk = SimulatedDisk()
    sent: list[dict[str, Any]] = []
    readings, positions = 0, 0  # how many were reported synced
    promised = -1  # decisions; -1: not even the run
    with suppress(PowerLoss):
        if hiccup is None:
            disk.fail_after(ops, PowerLoss(), seed=seed)
        journal = created(disk)
        promised = 0
        if hiccup is not None:
            disk.fail_after(hiccup, disk_full(), seed=seed)
        journal.open_readings(1, ["loss"])
        journal.open_provenance(1)
        for index, durable in enumerate(durables):
            journal.append_provenance(index, [index, index + 1, 3])
            journal.append_reading(index, 0, np.array([index], np.float32))
            sent.append({"step": index, "text": "x" * (index * 7)})
            journal.write("note", attempt=1, durable=durable, **sent[-1])
            if durable and not journal.backlog:
                promised = len(sent)
            if index % 3 == 2:
                journal.sync()
                promised = len(sent) if not journal.backlog else promised
                readings = index + 1 - journal.dropped_readings
                positions = index + 1 - journal.dropped_provenance
    if killed and hiccup is not None:
        disk.kill_process()
        promised = len(sent) if not journal.backlog else promised
        after = disk
    else:
        after = disk.crash(seed)
    try:
        again = resumed(after)
    except RunDirError:
        assert promised == -1
        again = created(after)  # what the crash left behind is no obstacle
    held = [{"step": r["step"], "text": r["text"]} for r in again.records]
    assert held == sent[: len(held)]
    assert len(held) >= promised
    if readings:
        block = read_readings(after, READINGS)
        assert len(block.steps) >= readings
        assert block.steps.tolist() == block.values[:, 0].tolist()
        assert sorted(set(block.steps.tolist())) == block.steps.tolist()
    if positions:
        assert len(read_provenance(after, PROVENANCE)) >= positions
        for step, where in read_provenance(after, PROVENANCE).items():
            assert where == [step, step + 1, 3]
    again.write("resume", attempt=again.last_attempt + 1, step=0)
    again.open_readings(again.last_attempt + 1, ["loss"])
    final = Journal.read(after.crash(seed + 1), RUN).records
    assert final == again.records


def test_a_crash_between_unsynced_records_is_no_damage() -> None:
    """A later block reached the disk and an earlier one did not: the end is cut there."""
    disk = SimulatedDisk()
    journal = created(disk)
    written(journal, 1)
    safe = disk.size(DECISIONS)
    for step in (2, 3):
        journal.write("note", attempt=1, step=step, durable=False)
    data = bytearray(disk.read(DECISIONS))
    data[safe : safe + 30] = bytes(30)
    disk.write(DECISIONS, [data])
    disk.kill_process()
    again = resumed(disk)
    assert [record["step"] for record in again.records] == [1]
    assert again.torn_bytes == len(data) - safe


# A full or failing disk while training.


def test_a_full_disk_keeps_decisions_and_drops_readings() -> None:
    disk = SimulatedDisk()
    warnings: list[str] = []
    journal = created(disk, warnings.append)
    journal.open_readings(1, ["loss"])
    journal.open_provenance(1)
    for step in range(30):
        if step in (10, 20):
            disk.full = step == 10
        journal.append_reading(step, 0, np.array([step], np.float32))
        journal.append_provenance(step, [step])
        journal.write("note", attempt=1, step=step, durable=step % 2 == 0)
        assert journal.backlog == (step - 9 if 10 <= step < 20 else 0)
    assert (journal.dropped_readings, journal.dropped_provenance) == (10, 10)
    assert len(warnings) == 3  # one a file, and one an outage
    assert all("No space" in warning for warning in warnings)
    journal.close()
    after = disk.crash(0)
    assert [record["step"] for record in Journal.read(after, RUN).records] == list(range(30))
    kept = [*range(10), *range(20, 30)]
    assert read_readings(after, READINGS).steps.tolist() == kept
    assert list(read_provenance(after, PROVENANCE)) == kept


def test_a_second_outage_is_told_again_and_close_tells_what_is_lost() -> None:
    disk = SimulatedDisk()
    warnings: list[str] = []
    journal = created(disk, warnings.append)
    for full in (True, False, True):
        disk.full = full
        written(journal, 1, 2)
    assert len(warnings) == 2
    journal.close()
    assert "2 decisions" in warnings[-1]
    assert [record["step"] for record in Journal.read(disk, RUN).records] == [1, 2, 1, 2]


@settings(deadline=None)
@given(st.integers(0, 30), SEEDS)
def test_one_failing_call_loses_no_decision(ops: int, seed: int) -> None:
    disk = SimulatedDisk()
    journal = created(disk)
    disk.fail_after(ops, disk_full(), seed=seed)
    for step in range(8):
        journal.write("note", attempt=1, step=step, durable=step % 3 == 2)
    journal.sync()
    journal.sync()
    assert journal.backlog == 0
    records = Journal.read(disk.crash(seed), RUN).records
    assert records == journal.records
    assert [record["step"] for record in records] == list(range(8))


def test_a_failed_sync_of_readings_counts_all_it_gave_up() -> None:
    disk = SimulatedDisk()
    warnings: list[str] = []
    journal = created(disk, warnings.append)
    journal.open_readings(1, ["loss"])
    for step in range(6):
        journal.append_reading(step, 0, np.array([step], np.float32))
        if step in (1, 4):
            disk.fail_after(0 if step == 4 else 9, disk_full())
            journal.sync()
    assert (journal.dropped_readings, len(warnings)) == (3, 1)
    journal.close()
    assert read_readings(disk.crash(0), READINGS).steps.tolist() == [0, 1, 5]


# The binary files: damage and hostile bytes.


def readings_file() -> bytes:
    data = records.encode_readings_header(1, ["a", "b"])
    for step in range(5):
        data += records.encode_reading(step, step, np.array([step, -step], np.float32))
    return data


def provenance_file() -> bytes:
    data = records.encode_provenance_header(1)
    for step in range(5):
        data += records.encode_provenance(step, [step, step + 1, 100 * step])
    return data


def loaded(data: bytes) -> tuple[list[Any], int]:
    """What either reader makes of a file: its records by step, and what it left unread."""
    disk = SimulatedDisk()
    disk.write(Path("/f"), [data])
    if data[:8] == b"FSHKREAD":
        block = read_readings(disk, Path("/f"))
        rows = zip(block.steps.tolist(), block.values.tolist(), strict=True)
        return list(rows), block.torn_bytes
    provenance = read_provenance(disk, Path("/f"))
    return list(provenance.items()), provenance.torn_bytes


@pytest.mark.parametrize("whole", [readings_file(), provenance_file()], ids=["readings", "data"])
class TestDamage:
    def test_every_truncation(self, whole: bytes) -> None:
        """A file cut anywhere holds the records before the cut, and counts the rest."""
        rows, torn = loaded(whole)
        assert (len(rows), torn) == (5, 0)
        header = whole.index(b"}") + 5
        record = (len(whole) - header) // 5
        for size in range(len(whole)):
            if size < header:
                with pytest.raises(JournalError):
                    loaded(whole[:size])
            else:
                count, rest = divmod(size - header, record)
                assert loaded(whole[:size]) == (rows[:count], rest)

    def test_every_flip(self, whole: bytes) -> None:
        rows, _ = loaded(whole)
        for where in range(len(whole)):
            for bit in (1, 128):
                data = bytearray(whole)
                data[where] ^= bit
                try:
                    part, torn = loaded(bytes(data))
                except JournalError:
                    assert where < whole.index(b"}") + 5
                else:
                    assert part == rows[: len(part)]
                    assert len(part) < 5
                    assert torn > 0

    def test_zeros_are_no_records(self, whole: bytes) -> None:
        assert loaded(whole + bytes(500)) == (loaded(whole)[0], 500)

    def test_random_bytes(self, whole: bytes) -> None:
        rng = random.Random(5)
        for _ in range(300):
            tail = rng.randbytes(rng.randint(0, 100))
            for data in (tail, whole[:8] + tail, whole + tail):
                with suppress(JournalError):
                    loaded(data)


def forged_header(magic: bytes, text: bytes) -> bytes:
    header = struct.pack("<8sII", magic, records.FORMAT, len(text)) + text
    return header + struct.pack("<I", zlib.crc32(header))


@pytest.mark.parametrize(
    "data",
    [
        b"FSHKREAD" + struct.pack("<II", 2, 0xFFFFFFFF) + b"{}",
        b"FSHKREAD" + struct.pack("<II", 1, 2) + b"{}",
        *(
            forged_header(b"FSHKREAD", text)
            for text in (
                b"",
                b"[]",
                b"{}",
                b"[" * 100_000,
                b'{"attempt":1,"series":1000000000}',
                b'{"attempt":1,"series":[]}',
                b'{"attempt":1,"series":[1]}',
                b'{"attempt":true,"series":["a"]}',
                b'{"series":["a"]}',
            )
        ),
        forged_header(b"FSHKDATA", b"{}"),
    ],
    ids=lambda data: f"{len(data)}-bytes",
)
def test_a_hostile_header_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(JournalError) as caught:
        loaded(data)
    assert "\n" not in str(caught.value)
    assert "/f" in str(caught.value)


def forged_provenance(*runs: tuple[int, int], repeat: int = 1) -> bytes:
    body = struct.pack("<Iq", len(runs), 7) + b"".join(struct.pack("<qI", *run) for run in runs)
    record = body + struct.pack("<I", zlib.crc32(body))
    return records.encode_provenance_header(1) + record * repeat


@pytest.mark.parametrize(
    "data",
    [
        forged_provenance((0, 0xFFFFFFFF)),
        forged_provenance((0, 1 << 20), (0, 1)),
        forged_provenance((0, 1 << 19), repeat=3),
        forged_provenance((5, 0)),
    ],
    ids=["one-run", "two-runs", "three-records", "empty-run"],
)
def test_impossible_runs_are_refused_without_spelling_them_out(data: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(JournalError, match="step 7 claims impossible runs"):
        loaded(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_reading_needs_memory_in_proportion_to_the_file() -> None:
    header = records.encode_readings_header(1, [f"{i}" for i in range(20_000)])
    data = header + bytes(200_000)
    tracemalloc.start()
    block = records.decode_readings(data, "f")
    assert tracemalloc.get_traced_memory()[1] < 40 * len(data)
    tracemalloc.stop()
    assert block.values.shape == (0, 20_000)
    assert block.torn_bytes == 200_000


@settings(deadline=None)
@given(st.lists(st.integers(0, 40) | st.integers(0, 2**63 - 1), max_size=50))
def test_positions_read_back_in_order(positions: list[int]) -> None:
    data = records.encode_provenance_header(3) + records.encode_provenance(-1, positions)
    provenance = records.decode_provenance(data, "f")
    assert provenance.attempt == 3
    assert dict(provenance) == {-1: positions}


def test_a_contiguous_batch_is_one_run() -> None:
    assert len(records.encode_provenance(1, range(10_000))) == 12 + 12 + 4


@pytest.mark.parametrize("positions", [[3, -1], range((1 << 20) + 1)])
def test_positions_that_cannot_be_recorded(positions: list[int]) -> None:
    with pytest.raises(JournalError, match="step 1 reports"):
        records.encode_provenance(1, positions)


def test_the_shape_of_a_reading_is_checked() -> None:
    disk = SimulatedDisk()
    journal = created(disk)
    with pytest.raises(JournalError, match="call `open_readings` first"):
        journal.append_reading(1, 0, np.zeros(2, np.float32))
    with pytest.raises(JournalError, match="call `open_provenance` first"):
        journal.append_provenance(1, [1])
    for wrong in ([], ["a", "a"]):
        with pytest.raises(JournalError, match="at least one name, each once"):
            journal.open_readings(1, wrong)
    journal.open_readings(1, ["a", "b"])
    for shape in ((), (1,), (3,), (2, 1)):
        with pytest.raises(JournalError, match="2 series are open"):
            journal.append_reading(1, 0, np.zeros(shape, np.float32))
    journal.append_reading(1, 0, np.array([1, 2], np.float64))
    assert read_readings(disk, READINGS).values.tolist() == [[1, 2]]
