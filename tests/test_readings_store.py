"""Readings in segments and tables: nothing lost, nothing twice, whatever happens when."""

import io
import json
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foreshock
from foreshock import compaction, compactor
from foreshock.compaction import Compaction, DiskFolder
from foreshock.core import segments
from foreshock.core.errors import ConfigError, JournalError, MissingExtra, RunDirError
from foreshock.core.kept_steps import kept_to
from foreshock.core.reading import ABSENT, is_absent
from foreshock.core.records import ReadingBlock, encode_reading, encode_readings_header
from foreshock.core.segments import Piece, folder_of, segment, sort_out, table_of, to_merge
from foreshock.durable import Disk, RealDisk
from foreshock.journal import Journal
from foreshock.logs import read_log
from foreshock.readings_files import AttemptReader
from foreshock.readings_parquet import TableFile, encode_blocks
from tests.simulated_disk import PowerLoss, SimulatedDisk, disk_full

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FOLDER = Path("/readings") / folder_of(1)
SERIES = ("loss/global", "grad_norm/blocks.3.attn", "grad_norm/blocks.3.attn.qkv", "lr/global")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 8 steps, all of them worth a table; row groups of 20."""
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 8)
    for module in (segments, compaction, compactor):
        monkeypatch.setattr(module, "MIN_RECORDS", 2)
    monkeypatch.setattr(segments, "GROUP_ROWS", 20)


def row(step: int, num_series: int = len(SERIES)) -> np.ndarray:
    """What is measured at a step: any bits at all, some values absent."""
    rng = np.random.default_rng(step)
    values = rng.integers(0, 1 << 32, num_series, np.uint32).view(np.float32)
    values[rng.random(num_series) < 0.2] = np.nan
    values[rng.random(num_series) < 0.2] = ABSENT
    return values


def bits(values: np.ndarray) -> list[list[int]]:
    return np.ascontiguousarray(values).view(np.uint32).tolist()


def expected(steps: list[int]) -> list[list[int]]:
    return [bits(row(step)[None])[0] for step in steps]


def write_segments(disk: Disk, num_segments: int, per_segment: int = 4) -> int:
    """Closed segments as a run leaves them; returns the number of steps."""
    disk.make_dir(FOLDER)
    step = 0
    for number in range(1, num_segments + 1):
        data = encode_readings_header(1, SERIES, number)
        for _ in range(per_segment):
            step += 1
            data += encode_reading(step, 1, row(step))
        path = FOLDER / segment(number).name
        disk.write(path, [data])
        disk.sync(path)
    disk.sync_dir(FOLDER)
    return step


def work_on(disk: Disk) -> Compaction:
    return Compaction(disk=disk, folder=FOLDER, attempt=1, passed_over=set())


def compact_all(disk: Disk) -> None:
    work = work_on(disk)
    while work.next():
        pass


def read_all(disk: Disk) -> ReadingBlock:
    with AttemptReader(DiskFolder(disk, FOLDER), 1) as reader:
        return reader.read()


def assert_whole(disk: Disk, num_steps: int) -> None:
    block = read_all(disk)
    assert block.steps.tolist() == list(range(1, num_steps + 1))
    assert bits(block.values) == expected(block.steps.tolist())
    assert set(block.flags.tolist()) == {1}


# Which files count.


@settings(deadline=None)
@given(st.integers(1, 900))
def test_tiers_keep_files_few(num_segments: int) -> None:
    pieces = [Piece(n, n, is_table=True) for n in range(1, num_segments + 1)]
    written = num_segments
    while merged := to_merge(pieces):
        at = pieces.index(merged[0])
        pieces[at : at + len(merged)] = [table_of(merged)]
        written += table_of(merged).span
    assert sort_out(piece.name for piece in pieces).num_missing == 0
    assert [n for one in pieces for n in range(one.first, one.last + 1)] == list(
        range(1, num_segments + 1)
    )
    assert len(pieces) <= num_segments // 64 + 7 + 7
    assert written <= 3 * num_segments


def test_wider_tables_count_and_other_names_are_passed_over() -> None:
    wide = table_of([segment(1), segment(4)])
    names = [wide.name, *(segment(n).name for n in range(1, 7)), "000000002-000000003.parquet"]
    found = sort_out([*names, ".000000007.bin.tmp", "notes.txt", "7.bin", "000000000.bin"])
    assert [one.name for one in found.counting] == [wide.name, segment(5).name, segment(6).name]
    assert len(found.replaced) == 5
    assert sort_out([segment(1).name, segment(4).name]).num_missing == 2


def test_tables_that_overlap_are_refused() -> None:
    with pytest.raises(JournalError, match="overlap"):
        sort_out(["000000001-000000003.parquet", "000000003-000000004.parquet"])


def test_a_segment_is_full_by_bytes_or_by_steps() -> None:
    assert segments.is_full(8192, 1)
    assert not segments.is_full(8191, 1)
    assert segments.is_full(4200, 1000)
    assert not segments.is_full(4000, 1000)
    assert not segments.is_full(511, 1_000_000)


# A table holds the same bits.


def table_bytes(block: ReadingBlock, rows: int = 7, piece: Piece | None = None) -> bytes:
    piece = piece or table_of([segment(1)])
    return b"".join(encode_blocks([block], piece, 1, block.series, rows))


def block_of(values: np.ndarray, series: tuple[str, ...] | None = None) -> ReadingBlock:
    names = series or tuple(f"s/{at}" for at in range(values.shape[1]))
    return ReadingBlock(
        attempt=1,
        series=names,
        steps=np.arange(10, 10 + len(values), dtype=np.int64),
        flags=np.arange(len(values), dtype=np.int32),
        values=values,
        torn_bytes=0,
    )


def read_table(data: bytes, series: list[str], steps: Any = (None, None)) -> list[ReadingBlock]:
    with TableFile(io.BytesIO(data), "t.parquet", table_of([segment(1)]), 1) as table:
        return list(table.read(table.groups_in(steps), series))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 50), st.integers(0, 1 << 32))
def test_any_bits_survive_a_table(rows: int, num_series: int, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 1 << 32, (rows, num_series), np.uint32)
    raw[rng.random(raw.shape) < rng.random()] = 0x7FC5EED0
    raw[rng.random(raw.shape) < 0.2] = rng.choice([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7F800000])
    block = block_of(raw.view(np.float32))
    (found,) = read_table(table_bytes(block, group), list(block.series))
    assert bits(found.values) == raw.tolist()
    assert (found.steps.tolist(), found.flags.tolist()) == (
        block.steps.tolist(),
        block.flags.tolist(),
    )


def test_other_tools_see_null_for_absent_and_nan_for_nan(tmp_path: Path) -> None:
    values = np.array([[1.5, ABSENT], [np.nan, np.inf]], np.float32)
    path = tmp_path / "t.parquet"
    path.write_bytes(table_bytes(block_of(values, ("loss/a.b", "loss/a.b.c"))))
    table = pq.read_table(path)
    assert table.column_names == ["step", "flags", "loss/a.b", "loss/a.b.c"]
    assert table.column("loss/a.b.c").to_pylist() == [None, np.inf]
    assert table.column("loss/a.b").null_count == 0
    assert str(table.schema.field("loss/a.b").type) == "float"


def test_a_name_that_begins_another_is_not_mixed_up_with_it() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = table_bytes(block_of(values, ("s/a", "s/a.b", "s/a.b.c")))
    (found,) = read_table(data, ["s/a.b", "s/a"])
    assert found.values.tolist() == [[1, 0], [4, 3]]


def test_only_row_groups_that_hold_the_steps_are_read() -> None:
    data = table_bytes(block_of(np.zeros((100, 2), np.float32)), rows=10)
    with TableFile(io.BytesIO(data), "t", table_of([segment(1)]), 1) as table:
        assert table.num_groups == 10
        assert table.groups_in((35, 52)) == [2, 3, 4]
        assert table.groups_in((None, 9)) == []
        assert table.groups_in((105, None)) == [9]


@pytest.mark.parametrize("change", ["cut", "flip"])
def test_a_damaged_table_is_one_clear_error_or_unharmed(change: str) -> None:
    block = block_of(np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32))
    data = table_bytes(block, rows=20)
    rng = random.Random(1)
    num_refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        at = rng.randrange(len(data))
        if change == "cut":
            del damaged[at:]
        else:
            damaged[at] ^= 1 << rng.randrange(8)
        try:
            found = read_table(bytes(damaged), list(block.series))
        except JournalError as error:
            num_refused += 1
            assert "\n" not in str(error)
        else:
            assert change == "flip"
            assert np.concatenate([one.values for one in found]).tobytes() == block.values.tobytes()
    assert num_refused == 400 if change == "cut" else num_refused > 300


def test_a_forged_table_is_refused(tmp_path: Path) -> None:
    right = {"step": pa.array([1, 2]), "flags": pa.array([1, 1], pa.int32())}
    value = {"a/b": pa.array([1.0, 2.0], pa.float32())}
    label = {"format": 1, "attempt": 1, "first": 1, "last": 1}
    cases: dict[str, tuple[dict[str, Any], Any]] = {
        "unlabelled": ({**right, **value}, None),
        "of another attempt": ({**right, **value}, label | {"attempt": 2}),
        "of another segment": ({**right, **value}, label | {"last": 2}),
        "text": ({**right, "a/b": pa.array(["x", "y"])}, label),
        "doubles": ({**right, "a/b": pa.array([1.0, 2.0])}, label),
        "lists": ({**right, "a/b": pa.array([[1.0], [2.0]], pa.list_(pa.float32()))}, label),
        "no steps": (value, label),
        "no series": (right, label),
        "missing steps": ({**right, "step": pa.array([1, None]), **value}, label),
    }
    for name, (columns, told) in cases.items():
        table = pa.table(columns)
        text = json.dumps(told) if told is not None else "null"
        table = table.replace_schema_metadata({"foreshock": text})
        pq.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(JournalError, match=r"t\.parquet"):
            read_table((tmp_path / "t.parquet").read_bytes(), ["a/b"])
            raise AssertionError(name)


def test_a_table_that_claims_a_huge_row_group_is_refused_unread() -> None:
    block = block_of(np.zeros((1 << 17, 1), np.float32))
    data = table_bytes(block, rows=1 << 17)  # a few kilobytes
    assert len(data) < 1 << 20
    with pytest.raises(JournalError, match="impossibly large"):
        read_table(data, ["s/0"])


# Crashes at any moment.


@pytest.mark.usefixtures("small")
@settings(max_examples=80, deadline=None)
@given(
    num_segments=st.integers(1, 18),
    ops=st.integers(0, 130),
    seed=st.integers(0, 1 << 32),
    kind=st.sampled_from(["power", "kill", "full"]),
)
def test_a_crash_loses_nothing_and_shows_nothing_twice(
    num_segments: int, ops: int, seed: int, kind: str
) -> None:
    disk = SimulatedDisk()
    num_steps = write_segments(disk, num_segments)
    disk.fail_after(ops, disk_full() if kind == "full" else PowerLoss(), seed=seed)
    with suppress(PowerLoss, OSError):
        compact_all(disk)
    if kind != "full":
        disk.kill_process()
    after = disk.crash(seed) if kind == "power" else disk
    assert_whole(after, num_steps)
    compact_all(after)
    assert_whole(after.crash(seed + 1), num_steps)
    kept = [name for name in after.list(FOLDER) if not name.startswith(".")]
    assert len(kept) == len(sort_out(kept).counting) <= num_segments // 64 + 14
    assert all(name.endswith(".parquet") for name in kept)


@pytest.mark.usefixtures("small")
def test_every_single_operation_may_be_the_last() -> None:
    whole = SimulatedDisk()
    write_segments(whole, 9)
    before = whole.num_changes
    compact_all(whole)
    for ops in range(whole.num_changes - before):
        disk = SimulatedDisk()
        num_steps = write_segments(disk, 9)
        disk.fail_after(ops, PowerLoss(), seed=ops)
        with pytest.raises(PowerLoss):
            compact_all(disk)
        for seed in range(3):
            assert_whole(disk.crash(seed), num_steps)


@pytest.mark.usefixtures("small")
def test_what_is_damaged_or_short_is_left_as_it_is() -> None:
    disk = SimulatedDisk()
    write_segments(disk, 3)
    path = FOLDER / segment(2).name
    data = bytearray(disk.read(path))
    data[-40] ^= 1  # in the third of its four records
    disk.write(path, [data])
    disk.write(FOLDER / segment(4).name, [encode_readings_header(1, SERIES, 4)])
    compact_all(disk)
    left = [name for name in disk.list(FOLDER) if name.endswith(".bin")]
    assert left == [segment(2).name, segment(4).name]
    block = read_all(disk)
    assert block.torn_bytes == 64
    assert block.steps.tolist() == [1, 2, 3, 4, 5, 6, 9, 10, 11, 12]


# Reading while files change.


class Vanishing:
    """A folder in which, on the n-th open, the first work is done behind the reader's back."""

    def __init__(self, disk: SimulatedDisk, at: int) -> None:
        self.inner = DiskFolder(disk, FOLDER)
        self.shown = self.inner.shown
        self.work = work_on(disk)
        self.at = at

    def names(self) -> list[str]:
        return self.inner.names()

    def open(self, name: str) -> Any:
        self.at -= 1
        if self.at == 0:
            while self.work.next():
                pass
        return self.inner.open(name)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("at", range(1, 12))
def test_files_that_are_compacted_in_the_middle_of_a_read(at: int) -> None:
    disk = SimulatedDisk()
    num_steps = write_segments(disk, 10)
    with AttemptReader(Vanishing(disk, at), 1) as reader:
        block = reader.read()
        assert block.steps.tolist() == list(range(1, num_steps + 1))
        assert bits(block.values) == expected(block.steps.tolist())
        again = reader.read([SERIES[1]], (5, 20))
        assert again.steps.tolist() == list(range(5, 21))


def test_a_listing_that_misses_a_rename_is_made_again() -> None:
    disk = SimulatedDisk()
    num_steps = write_segments(disk, 3)

    class Torn(DiskFolder):
        calls = 0

        def names(self) -> list[str]:
            type(self).calls += 1
            names = super().names()
            return names[:-1] if Torn.calls == 1 else names

    assert AttemptReader(Torn(disk, FOLDER), 1).read().steps.tolist()[-1] == num_steps


WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import numpy as np
    from foreshock import compaction, compactor
    from foreshock.core import segments
    from foreshock.durable import RealDisk
    from foreshock.journal import Journal
    segments.SEGMENT_RECORDS = 40
    for module in (segments, compaction, compactor):
        module.MIN_RECORDS = 2
    with Journal.create(RealDisk(), Path(sys.argv[1]), {}, lambda: 0.0) as journal:
        journal.write("attempt_started", attempt=1, step=0)
        journal.open_readings(1, [f"s/{at}" for at in range(20)])
        print("ready", flush=True)
        for step in range(1, 4001):
            journal.append_reading(step, 1, np.arange(step, step + 20, dtype=np.float32))
            if step % 1000 == 0:
                journal.wait_for_compaction(20)
        journal.wait_for_compaction(20)
        print("done", flush=True)
        sys.stdin.read()
    """
)


def test_a_run_is_read_while_another_process_writes_and_compacts_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        done = threading.Event()
        threading.Thread(target=lambda: (process.stdout.readline(), done.set())).start()
        seen, num_reads = 0, 0
        with foreshock.open(run_dir) as data:
            while not done.is_set() or num_reads < 3:
                try:
                    found = data.read(["s/3", "s/17"])
                except ConfigError:  # nothing yet
                    continue
                num_reads += 1
                steps = found.steps
                assert steps.tolist() == list(range(1, len(steps) + 1))
                assert len(steps) >= seen
                seen = len(steps)
                assert (found.values == steps[:, None] + np.array([3, 17])).all()
            assert seen == 4000
            names = [path.name for path in (run_dir / "readings/attempt-00001").iterdir()]
        process.stdin.close()
        assert process.wait(30) == 0
    assert len([name for name in names if name.endswith(".bin")]) == 1
    assert len(names) <= 100 // 64 + 14 + 1


# The journal's part.


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    real = RealDisk()
    yield real
    real.close()


def trained(journal: Journal, attempt: int, start: int, stop: int, series: Any = SERIES) -> None:
    journal.write("attempt_started", attempt=attempt, step=start - 1)
    journal.open_readings(attempt, series)
    for step in range(start, stop + 1):
        journal.append_reading(step, step % 2, row(1000 * attempt + step)[: len(series)])


@pytest.mark.usefixtures("small")
def test_a_resume_compacts_what_was_left(tmp_path: Path, disk: RealDisk) -> None:
    run_dir = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compactor.Compactor, "_start", lambda *_: None)  # killed at once, say
        with Journal.create(disk, run_dir, {}, lambda: 0.0) as journal:
            trained(journal, 1, 1, 100)
    folder = run_dir / "readings/attempt-00001"
    assert len(list(folder.glob("*.bin"))) == 13
    before = Journal.read(disk, run_dir).readings(1)
    with Journal.open(disk, run_dir, None, lambda: 0.0) as journal:
        assert journal.wait_for_compaction(30)
        trained(journal, 2, 51, 60)
        assert journal.wait_for_compaction(30)
    assert list(folder.glob("*.bin")) == []
    assert len(list(folder.iterdir())) == 6  # one of eight segments, five of one
    after = Journal.read(disk, run_dir).readings(1)
    assert after.steps.tolist() == before.steps.tolist() == list(range(1, 101))
    assert bits(after.values) == bits(before.values)
    assert after.flags.tolist() == before.flags.tolist()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("trouble", ["no pyarrow", "no room", "a bug"])
def test_compaction_that_fails_harms_nothing(
    tmp_path: Path, disk: RealDisk, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "no pyarrow":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    elif trouble == "no room":
        monkeypatch.setattr(RealDisk, "free_bytes", lambda *_: 1000)
    else:
        monkeypatch.setattr(compaction, "encode_blocks", lambda *_: 1 / 0)
    warnings: list[str] = []
    run_dir = tmp_path / "run"
    journal = Journal.create(disk, run_dir, {}, lambda: 0.0, warn=warnings.append)
    with journal:
        trained(journal, 1, 1, 50)
        assert journal.wait_for_compaction(30)
        trained(journal, 2, 51, 100)
        assert journal.wait_for_compaction(30)
    assert len(warnings) == 1
    assert "not compacted" in warnings[0]
    assert journal.dropped_readings == 0
    for attempt in (1, 2):
        folder = run_dir / "readings" / folder_of(attempt)
        assert {path.suffix for path in folder.iterdir()} == {".bin"}
        assert len(Journal.read(disk, run_dir).readings(attempt).steps) == 50


@pytest.mark.usefixtures("small")
def test_close_gives_up_the_table_in_hand_and_the_next_process_makes_it(
    tmp_path: Path, disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Iterator[bytes]:
        for chunk in encode_blocks(*arguments):
            started.set()
            assert go_on.wait(30)
            yield chunk

    monkeypatch.setattr(compaction, "encode_blocks", slow)
    run_dir = tmp_path / "run"
    journal = Journal.create(disk, run_dir, {}, lambda: 0.0)
    trained(journal, 1, 1, 20)
    assert started.wait(30)
    journal._readings._compactor._stop.set()  # what close does first
    go_on.set()
    journal.close()
    folder = run_dir / "readings/attempt-00001"
    assert {path.suffix for path in folder.iterdir()} == {".bin"}
    monkeypatch.undo()
    assert len(Journal.read(disk, run_dir).readings(1).steps) == 20


def test_series_that_a_table_could_not_hold_are_refused(tmp_path: Path, disk: RealDisk) -> None:
    with Journal.create(disk, tmp_path / "run", {}, lambda: 0.0) as journal:
        for name in ("step", "flags"):
            with pytest.raises(JournalError, match="no series can be called"):
                journal.open_readings(1, ["loss/global", name])


def test_a_segment_of_another_attempt_is_refused(tmp_path: Path, disk: RealDisk) -> None:
    with Journal.create(disk, tmp_path / "run", {}, lambda: 0.0) as journal:
        trained(journal, 1, 1, 3)
        trained(journal, 2, 4, 6)
    one, two = (tmp_path / f"run/readings/attempt-0000{n}/000000001.bin" for n in (1, 2))
    one.write_bytes(two.read_bytes())
    with pytest.raises(JournalError, match="attempt 2"):
        Journal.read(disk, tmp_path / "run").readings(1)
    one.rename(one.with_name("000000002.bin"))
    with pytest.raises(JournalError, match="another segment"):
        Journal.read(disk, tmp_path / "run").readings(1)


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path, disk: RealDisk) -> None:
    with Journal.create(disk, tmp_path / "run", {}, lambda: 0.0) as journal:
        trained(journal, 1, 1, 3)
    folder = tmp_path / "run/readings/attempt-00001"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirError, match="no directory of its own"):
        Journal.read(disk, tmp_path / "run").readings(1)
    with pytest.raises(RunDirError, match="no directory of its own"):
        Journal.open(disk, tmp_path / "run", None, lambda: 0.0)


# foreshock.open.


def lineage(attempts: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(attempt, step) of the run as it ended, found the slow way: replay what happened."""
    held: list[tuple[int, int]] = []
    for attempt, start, stop in attempts:
        held = [one for one in held if one[1] < start]
        held += [(attempt, step) for step in range(start, stop + 1)]
    return held


@pytest.mark.usefixtures("small")
@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=5))
def test_the_run_as_it_ended(tmp_path_factory: Any, plan: list[tuple[int, int]]) -> None:
    run_dir = tmp_path_factory.mktemp("run") / "run"
    real = RealDisk()
    attempts: list[tuple[int, int, int]] = []
    with Journal.create(real, run_dir, {}, lambda: 0.0) as journal:
        reached = 0
        for attempt, (start, length) in enumerate(plan, 1):
            begin = min(start, reached + 1)
            attempts.append((attempt, begin, begin + length - 1))
            reached = max(begin - 1, begin + length - 1)
            trained(journal, attempt, begin, begin + length - 1)
    real.close()
    held = lineage(attempts)
    with foreshock.open(run_dir) as data:
        if not any(stop >= start for _, start, stop in attempts):
            assert data.attempts() == []
            return
        found = data.read()
        assert list(zip(found.attempts.tolist(), found.steps.tolist(), strict=True)) == held
        rows = [row(1000 * attempt + step) for attempt, step in held]
        assert bits(found.values) == (bits(np.array(rows)) if rows else [])
        assert found.committed.tolist() == [step % 2 == 1 for _, step in held]
        part = data.read(SERIES[2], steps=(5, 12))
        inside = [one for one in held if 5 <= one[1] <= 12]
        assert list(zip(part.attempts.tolist(), part.steps.tolist(), strict=True)) == inside
        joined = [block.values for block in data.blocks(SERIES[2], (5, 12))]
        assert bits(np.concatenate([np.zeros((0, 1), np.float32), *joined])) == bits(part.values)
        for attempt, start, stop in attempts:
            if stop >= start:
                assert data.read(attempt=attempt).steps.tolist() == list(range(start, stop + 1))


def test_an_attempt_that_measured_nothing_undoes_too() -> None:
    assert kept_to({1: 0, 2: 40, 3: 90, 4: 60}) == {1: 40, 2: 60, 3: 60, 4: None}


@pytest.fixture
def told(tmp_path: Path, disk: RealDisk) -> Path:
    """Two attempts with other series; the second goes back to step 2."""
    run_dir = tmp_path / "run"
    with Journal.create(disk, run_dir, {"program": "p"}, lambda: 0.0) as journal:
        for attempt, start, names in ((1, 1, ["a/x", "a/y[1]"]), (2, 3, ["b/x", "a/x"])):
            journal.write("attempt_started", attempt=attempt, step=start - 1)
            journal.open_readings(attempt, names)
            for step in range(start, start + 3):
                values = np.array([10 * attempt + step, ABSENT if step % 2 else np.nan], np.float32)
                journal.append_reading(step, 1, values)
    return run_dir


def test_patterns_and_series_of_all_attempts(told: Path) -> None:
    with foreshock.open(told) as data:
        assert data.identity["program"] == "p"
        assert data.attempts() == [1, 2]
        assert data.series() == ("a/x", "a/y[1]", "b/x")
        assert data.series(2) == ("b/x", "a/x")
        assert data.read("a/*").series == ("a/x", "a/y[1]")
        assert data.read(["b/?", "a/y[1]", "b/x"]).series == ("b/x", "a/y[1]")
        with pytest.raises(ConfigError, match="no series fits 'a/z'; near are a/x"):
            data.read("a/z")
        with pytest.raises(ConfigError, match=r"attempt 7 has no readings; there are \[1, 2\]"):
            data.read(attempt=7)
        found = data.read()
        assert found.steps.tolist() == [1, 2, 3, 4, 5]
        assert found.attempts.tolist() == [1, 1, 2, 2, 2]
        assert is_absent(found["b/x"]).tolist() == [True, True, False, False, False]
        assert is_absent(found["a/x"]).tolist() == [False, False, True, False, True]
        assert np.isnan(found["a/x"][3]) and not is_absent(found["a/x"])[3]
        assert found["b/x"][2:].tolist() == [23, 24, 25]
        with pytest.raises(KeyError):
            found["c"]
        assert len(data.read("a/x", steps=(9, 4))) == 0


def test_arrow(told: Path) -> None:
    with foreshock.open(told) as data:
        found = data.read()
    wide = found.to_arrow()
    assert wide.column_names == ["step", "a/x", "a/y[1]", "b/x"]
    assert wide.column("b/x").to_pylist() == [None, None, 23, 24, 25]
    assert [repr(one) for one in wide.column("a/y[1]").to_pylist()] == ["None", "nan"] + [
        "None"
    ] * 3
    long = found.to_arrow(long=True)
    assert long.column_names == ["attempt", "step", "signal", "scope", "value"]
    rows = {tuple(map(repr, one.values())) for one in long.to_pylist()}
    assert rows == {
        ("1", "1", "'a'", "'x'", "11.0"),
        ("1", "2", "'a'", "'x'", "12.0"),
        ("1", "2", "'a'", "'y[1]'", "nan"),
        ("2", "4", "'a'", "'x'", "nan"),
        ("2", "3", "'b'", "'x'", "23.0"),
        ("2", "4", "'b'", "'x'", "24.0"),
        ("2", "5", "'b'", "'x'", "25.0"),
    }


def test_without_pandas_one_sentence(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with foreshock.open(told) as data, pytest.raises(MissingExtra, match="pip install pandas"):
        data.read().to_pandas()


def test_pandas(told: Path) -> None:
    pytest.importorskip("pandas")
    with foreshock.open(told) as data:
        found = data.read()
    frame = found.to_pandas()
    assert frame.index.name == "step" and list(frame.columns) == ["a/x", "a/y[1]", "b/x"]
    assert frame.loc[4, "b/x"] == 24
    assert len(found.to_pandas(long=True)) == 7


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="not a Foreshock run directory"):
        foreshock.open(tmp_path)


@pytest.mark.usefixtures("small")
def test_diagnose_reads_tables_as_it_reads_segments(tmp_path: Path, disk: RealDisk) -> None:
    logs = []
    for name in ("segments", "tables"):
        with pytest.MonkeyPatch.context() as patch:
            if name == "segments":
                patch.setattr(compactor.Compactor, "_start", lambda *_: None)
            with Journal.create(disk, tmp_path / name, {}, lambda: 0.0) as journal:
                trained(journal, 1, 1, 60)
                trained(journal, 2, 31, 70)
                assert journal.wait_for_compaction(30)
        logs.append(read_log(tmp_path / name).runs[0])
    assert list((tmp_path / "tables").rglob("*.parquet"))
    one, two = logs
    assert one.restarts == two.restarts
    assert list(one.series) == list(two.series)
    for name, series in one.series.items():
        np.testing.assert_array_equal(series.values, two.series[name].values)
        np.testing.assert_array_equal(series.steps, two.series[name].steps)
    held = {step for step in range(1, 61) if not is_absent(row(1000 + step))[0]}
    assert one.series["loss"].steps.tolist()[: len(held)] == sorted(held)
