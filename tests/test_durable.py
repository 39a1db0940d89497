"""What `durable` promises, on the real disk and on one that loses whatever was not synced."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.errors import RunDirError
from foreshock.durable import (
    AppendLog,
    Disk,
    RealDisk,
    clean_leftovers,
    write_dir,
    write_file,
)
from tests.simulated_disk import PowerLoss, SimulatedDisk, disk_full

ROOT = Path("/run")
SEEDS = st.integers(0, 1 << 32)


@dataclass
class Place:
    disk: Disk
    root: Path


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "real":
        disk = RealDisk()
        yield Place(disk, tmp_path)
        disk.close()
    else:
        simulated = SimulatedDisk()
        simulated.make_dir(ROOT)
        yield Place(simulated, ROOT)


def empty_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dir(ROOT)
    return disk


# The contract of a Disk, which the simulated one must share with the real one.


def test_content(place: Place) -> None:
    disk, path = place.disk, place.root / "a"
    disk.write(path, [b"one", bytearray(b"two"), memoryview(b"three"), b""])
    assert disk.read(path) == b"onetwothree"
    disk.append(path, b"!")
    assert (disk.read(path), disk.size(path)) == (b"onetwothree!", 12)
    disk.truncate(path, 3)
    disk.append(path, b"more")
    assert disk.read(path) == b"onemore"
    disk.write(path, [b"new"])
    disk.append(path, b"er")
    disk.sync(path)
    assert disk.read(path) == b"newer"


def test_names(place: Place) -> None:
    disk, root = place.disk, place.root
    disk.make_dir(root / "d" / "e")
    disk.make_dir(root / "d" / "e")
    disk.append(root / "b", b"b")
    disk.append(root / "a", b"a")
    assert disk.list(root) == ["a", "b", "d"]
    disk.replace(root / "a", root / "b")
    disk.sync_dir(root)
    assert disk.list(root) == ["b", "d"]
    assert disk.read(root / "b") == b"a"
    disk.append(root / "b", b"+")  # not into the file that had this name before
    assert disk.read(root / "b") == b"a+"
    disk.remove(root / "b")
    disk.append(root / "b", b"fresh")
    assert disk.read(root / "b") == b"fresh"
    disk.append(root / "d" / "f", b"f")
    disk.remove_tree(root / "d")
    assert disk.list(root) == ["b"]
    assert not disk.exists(root / "d" / "e")
    assert disk.free_bytes(root) > 0


def test_what_cannot_be_done_is_an_oserror(place: Place) -> None:
    disk, root = place.disk, place.root
    disk.write(root / "file", [b""])
    with pytest.raises(FileNotFoundError):
        disk.read(root / "missing")
    with pytest.raises(FileNotFoundError):
        disk.append(root / "missing" / "a", b"a")
    with pytest.raises(FileExistsError):
        disk.make_dir(root / "file")
    with pytest.raises(NotADirectoryError):
        disk.remove_tree(root / "file")


def test_one_holder_of_a_lock(place: Place) -> None:
    lock = place.disk.lock(place.root / "lock")
    with pytest.raises(RunDirError, match="in use by"):
        place.disk.lock(place.root / "lock")
    lock.close()
    lock.close()
    place.disk.lock(place.root / "lock").close()


def test_write_file_and_write_dir(place: Place) -> None:
    disk, root = place.disk, place.root
    for content in (b"old", b"new"):
        write_file(disk, root / "f", [content, b"!"])
        assert disk.read(root / "f") == content + b"!"
    disk.make_dir(root / ".d.tmp")  # left by a crash
    disk.write(root / ".d.tmp" / "stale", [b"stale"])
    write_dir(disk, root / "d", {"a": [b"1", b"2"], "b": []})
    assert disk.list(root) == ["d", "f"]
    assert disk.list(root / "d") == ["a", "b"]
    assert disk.read(root / "d" / "a") == b"12"
    with pytest.raises(FileExistsError):
        write_dir(disk, root / "d", {})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_write_dir_takes_plain_names_only(place: Place, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        write_dir(place.disk, place.root / "d", {name: []})
    assert place.disk.list(place.root) == []


def test_clean_leftovers(place: Place) -> None:
    disk, root = place.disk, place.root
    disk.write(root / ".a.tmp", [b""])
    disk.make_dir(root / ".b.tmp")
    disk.write(root / ".b.tmp" / "x", [b""])
    for kept in (".keep", "c.tmp"):
        disk.write(root / kept, [b""])
    assert clean_leftovers(disk, root) == [".a.tmp", ".b.tmp"]
    assert disk.list(root) == [".keep", "c.tmp"]


def test_append_log(place: Place) -> None:
    disk, path = place.disk, place.root / "log"
    log = AppendLog(disk, path, header=b"H:")
    log.sync()
    assert not disk.exists(path)
    log.append(b"one,", durable=False)
    assert (log.size, log.synced_size) == (6, 2)
    log.append(b"two,", durable=True)
    assert (log.size, log.synced_size) == (10, 10)
    disk.append(path, b"to")
    again = AppendLog(disk, path, header=b"H:")
    assert disk.read(path) == b"H:one,two,to"
    again.repair(10)
    again.append(b"three,", durable=False)
    again.sync()
    assert disk.read(path) == b"H:one,two,three,"
    for wrong in (-1, 17):
        with pytest.raises(ValueError, match="cannot keep"):
            again.repair(wrong)


# The real disk alone.


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    disk = RealDisk()
    disk.write(tmp_path / "a", [b"0123456789"])
    disk.append(tmp_path / "a", b"abcdefgh")
    disk.close()
    assert (tmp_path / "a").read_bytes() == b"0123456789abcdefgh"


def test_many_logs_share_few_descriptors(tmp_path: Path) -> None:
    disk, before = RealDisk(), len(list(Path("/proc/self/fd").iterdir()))
    for turn in range(3):
        for index in range(40):
            disk.append(tmp_path / str(index), b"%d," % turn)
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 20
    disk.close()
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"0,1,2,"}


HOLD = """
import sys, time, pathlib
from foreshock.durable import RealDisk
lock = RealDisk().lock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(RunDirError, match=f"in use by process {process.pid} on"):
            RealDisk().lock(tmp_path / "lock")
        process.send_signal(signal.SIGKILL)
        process.wait()
        RealDisk().lock(tmp_path / "lock").close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = RealDisk().lock(tmp_path / "lock")
    context = multiprocessing.get_context("fork")
    runs, stop = context.Event(), context.Event()
    worker = context.Process(target=lambda: (runs.set(), stop.wait(60)))
    worker.start()
    try:
        assert runs.wait(60)
        with pytest.raises(RunDirError):
            RealDisk().lock(tmp_path / "lock")
        lock.close()
        RealDisk().lock(tmp_path / "lock").close()
    finally:
        stop.set()
        worker.join()


# Power loss at any operation.


@settings(deadline=None)
@given(SEEDS, st.integers(0, 5))
def test_a_file_is_whole_old_or_whole_new(seed: int, ops: int) -> None:
    disk = empty_disk()
    old, new = b"old" * 20, b"new" * 30
    write_file(disk, ROOT / "f", [old])
    assert disk.crash(seed).read(ROOT / "f") == old
    disk.fail_after(ops, PowerLoss(), seed=seed)
    try:
        write_file(disk, ROOT / "f", [new[:40], new[40:]])
        allowed = {new}
    except PowerLoss:
        allowed = {old, new}
    after = disk.crash(seed)
    assert after.read(ROOT / "f") in allowed
    clean_leftovers(after, ROOT)
    assert after.list(ROOT) == ["f"]


@settings(deadline=None)
@given(SEEDS, st.integers(0, 12))
def test_a_directory_appears_whole_or_not_at_all(seed: int, ops: int) -> None:
    disk = empty_disk()
    files = {"a": b"a" * 50, "b": b"", "c": b"c" * 70}
    disk.fail_after(ops, PowerLoss(), seed=seed)
    finished = False
    with suppress(PowerLoss):
        write_dir(disk, ROOT / "d", {name: [data] for name, data in files.items()})
        finished = True
    after = disk.crash(seed)
    clean_leftovers(after, ROOT)
    assert after.list(ROOT) in ([["d"]] if finished else [[], ["d"]])
    if after.exists(ROOT / "d"):
        assert {name: after.read(ROOT / "d" / name) for name in after.list(ROOT / "d")} == files


@settings(max_examples=300, deadline=None)
@given(
    SEEDS,
    st.integers(0, 40),
    st.sampled_from([PowerLoss(), disk_full()]),
    st.lists(st.booleans(), max_size=12),
)
def test_what_an_append_log_synced_survives(
    seed: int, ops: int, error: BaseException, durables: list[bool]
) -> None:
    """Also when a single call fails on the way, and the log goes on after it."""
    disk = empty_disk()
    log = AppendLog(disk, ROOT / "log", header=b"header")
    disk.fail_after(ops, error, seed=seed)
    expected = b"header"
    promised = 0
    with suppress(PowerLoss):
        for index, durable in enumerate(durables):
            record = b"<%d>" % index * 9
            try:
                log.append(record, durable=durable)
            except OSError:
                expected = expected[: max(log.size, len(b"header"))]
            else:
                expected += record
                assert disk.read(ROOT / "log") == expected
                assert not durable or log.synced_size == len(expected)
            promised = log.synced_size
    after = disk.crash(seed)
    if promised:
        assert after.read(ROOT / "log")[:promised] == expected[:promised]
    elif after.exists(ROOT / "log"):
        assert after.read(ROOT / "log").startswith(b"header")


# Errors that are no power loss.


@settings(deadline=None)
@given(SEEDS, st.integers(0, 3))
def test_a_failed_write_file_leaves_the_old_file_alone(seed: int, ops: int) -> None:
    disk = empty_disk()
    write_file(disk, ROOT / "f", [b"old"])
    disk.fail_after(ops, disk_full(), seed=seed)
    with pytest.raises(OSError, match="No space"):
        write_file(disk, ROOT / "f", [b"new" * 9])
    assert disk.list(ROOT) == ["f"]
    assert disk.read(ROOT / "f") == (b"old" if ops < 3 else b"new" * 9)


@settings(deadline=None)
@given(SEEDS, st.integers(0, 7))
def test_a_failed_write_dir_leaves_nothing(seed: int, ops: int) -> None:
    disk = empty_disk()
    disk.fail_after(ops, disk_full(), seed=seed)
    with pytest.raises(OSError, match="No space"):
        write_dir(disk, ROOT / "d", {"a": [b"a"], "b": [b"b"]})
    assert disk.list(ROOT) == []


def test_chunks_that_raise_leave_nothing(place: Place) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"first"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(place.disk, place.root / "f", chunks())
    assert place.disk.list(place.root) == []


def test_a_full_disk_leaves_no_torn_record() -> None:
    disk = empty_disk()
    log = AppendLog(disk, ROOT / "log")
    log.append(b"first\n", durable=True)
    disk.capacity_bytes = 9
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            log.append(b"second\n", durable=True)
        assert disk.read(ROOT / "log") == b"first\n"
    disk.full = False
    log.append(b"third\n", durable=True)
    assert disk.crash(1).read(ROOT / "log") == b"first\nthird\n"


def test_a_cut_that_fails_is_made_up_for_before_the_next_append() -> None:
    disk = empty_disk()
    log = AppendLog(disk, ROOT / "log")
    log.append(b"first\n", durable=True)
    disk.full = True
    disk.capacity_bytes = 9
    disk.fail_after(1, disk_full())  # the truncation after the append
    with pytest.raises(OSError, match="No space"):
        log.append(b"second\n", durable=False)
    assert disk.read(ROOT / "log") == b"first\nsec"
    disk.full = False
    log.append(b"third\n", durable=False)
    assert disk.read(ROOT / "log") == b"first\nthird\n"


def test_a_failed_sync_takes_back_what_it_may_have_lost() -> None:
    disk = empty_disk()
    log = AppendLog(disk, ROOT / "log")
    log.append(b"safe\n", durable=True)
    log.append(b"in doubt\n", durable=False)
    disk.fail_after(1, disk_full())  # the sync after the append
    with pytest.raises(OSError, match="No space"):
        log.append(b"refused\n", durable=True)
    assert (log.size, log.synced_size) == (5, 5)
    log.append(b"again\n", durable=True)
    assert disk.crash(7).read(ROOT / "log") == b"safe\nagain\n"


def test_what_was_there_before_opening_is_never_cut() -> None:
    disk = empty_disk()
    AppendLog(disk, ROOT / "log").append(b"from a killed process\n", durable=False)
    disk.kill_process()
    log = AppendLog(disk, ROOT / "log")
    disk.fail_after(1, disk_full())
    with pytest.raises(OSError, match="No space"):
        log.append(b"refused\n", durable=True)
    assert disk.crash(3).read(ROOT / "log").startswith(b"from a killed process\n")


@settings(deadline=None)
@given(SEEDS)
def test_a_repair_is_durable(seed: int) -> None:
    disk = empty_disk()
    write_file(disk, ROOT / "log", [b"whole\nto"])
    AppendLog(disk, ROOT / "log").repair(6)
    assert disk.crash(seed).read(ROOT / "log") == b"whole\n"
