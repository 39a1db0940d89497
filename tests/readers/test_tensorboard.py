"""Event files of TensorBoard, written here byte by byte."""

import struct
import sys

import numpy as np
import pytest

from foreshock.core.errors import LogError, MissingExtra
from foreshock.core.log import EventKind
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource

event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
summary_pb2 = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
tensor_util = pytest.importorskip("tensorboard.util.tensor_util")

NAN = float("nan")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(data):
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def scalars(step, time=None, **values):
    """One event for all values."""
    parts = [
        summary_pb2.Summary.Value(tag=tag.replace("__", "/"), simple_value=value)
        for tag, value in values.items()
    ]
    event = event_pb2.Event(
        wall_time=1.7e9 + step if time is None else time,
        step=step,
        summary=summary_pb2.Summary(value=parts),
    )
    return framed(event.SerializeToString())


def apart(step, time=None, **values):
    """One event a value, as torch writes them."""
    return b"".join(scalars(step, time, **{tag: value}) for tag, value in values.items())


VERSION = framed(event_pb2.Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())


def write(folder, *records, started=1_700_000_000, suffix="host.12.0"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{started}.{suffix}"
    path.write_bytes(VERSION + b"".join(records))
    return path


def series_of(log, run=0):
    return {
        name: (one.steps.tolist(), one.values.tolist())
        for name, one in log.runs[run].series.items()
    }


def test_the_checksum_is_the_one_of_its_standard():
    assert crc32c(b"123456789") == 0xE3069283


def test_scalars_of_a_file(tmp_path):
    path = write(
        tmp_path,
        apart(0, train__loss=2.5, train__grad_norm=NAN),
        apart(10, train__loss=2.25, train__grad_norm=np.inf, eval__loss=3.0),
        apart(40_000, train__loss=2.0, train__grad_norm=0.5),
    )
    log = read_log(path)
    assert (log.format, log.notes, log.num_lines) == ("tensorboard", (), 8)
    loss = log.runs[0].series["loss"]
    assert (loss.steps.tolist(), loss.values.tolist()) == ([0, 10, 40_000], [2.5, 2.25, 2.0])
    np.testing.assert_equal(log.runs[0].series["grad_norm"].values, [NAN, np.inf, 0.5])
    assert series_of(log)["eval_loss"] == ([10], [3.0])


def test_several_scalars_in_one_event(tmp_path):
    log = read_log(write(tmp_path, scalars(3, loss=1.0, lr=0.5), scalars(4, loss=2.0, lr=0.25)))
    assert series_of(log) == {"loss": ([3, 4], [1.0, 2.0]), "lr": ([3, 4], [0.5, 0.25])}


@pytest.mark.parametrize(
    "array",
    [
        np.float32(1.5), np.float64(1.5), np.float16(1.5), np.array([[1.5]], np.float32),
    ],
)  # fmt: skip
def test_scalars_that_are_tensors(tmp_path, array):
    proto = tensor_util.make_tensor_proto(array)
    for one in (proto, type(proto).FromString(proto.SerializeToString())):
        value = summary_pb2.Summary.Value(tag="loss", tensor=one)
        event = event_pb2.Event(wall_time=1.0, step=7, summary=summary_pb2.Summary(value=[value]))
        log = read_log(write(tmp_path, framed(event.SerializeToString())))
        assert series_of(log) == {"loss": ([7], [1.5])}


def test_whole_numbers_and_contents_as_bytes(tmp_path):
    values = []
    for tag, dtype, code in (("loss", 3, "<i"), ("lr", 9, "<q"), ("grad_norm", 2, "<d")):
        value = summary_pb2.Summary.Value(tag=tag)
        value.tensor.dtype = dtype
        value.tensor.tensor_content = struct.pack(code, 5)
        values.append(value)
    text = summary_pb2.Summary.Value(tag="text", tensor=tensor_util.make_tensor_proto("hello"))
    curve = summary_pb2.Summary.Value(tag="c", tensor=tensor_util.make_tensor_proto([1.0, 2.0]))
    short = summary_pb2.Summary.Value(tag="short")
    short.tensor.dtype, short.tensor.tensor_content = 1, b"ab"
    summary = summary_pb2.Summary(value=[*values, text, curve, short])
    event = event_pb2.Event(wall_time=1.0, step=1, summary=summary)
    log = read_log(write(tmp_path, framed(event.SerializeToString())))
    assert series_of(log) == {name: ([1], [5.0]) for name in ("loss", "lr", "grad_norm")}


def test_a_negative_step_is_none(tmp_path):
    log = read_log(write(tmp_path, scalars(-1, time=1.0, loss=1.0), scalars(5, loss=2.0)))
    assert series_of(log) == {"loss": ([5, 5], [1.0, 2.0])}


def test_the_average_at_the_end_and_times_are_no_signals(tmp_path):
    path = write(
        tmp_path,
        apart(1, train__loss=3.0),
        apart(2, train__loss=1.0),
        apart(2, train__train_runtime=9.0, train__train_samples_per_second=8.0,
              train__total_flos=1e18, train__train_loss=2.0, perf__time=1.0),
    )  # fmt: skip
    assert series_of(read_log(path)) == {"loss": ([1, 2], [3.0, 1.0])}


@pytest.mark.parametrize("cut", [1, 4, 15, 30, 40])
def test_a_last_record_that_is_cut_off(tmp_path, cut):
    path = write(tmp_path, *(scalars(step, loss=1.0 * step) for step in range(1, 10)))
    path.write_bytes(path.read_bytes()[:-cut])
    log = read_log(path)
    assert series_of(log)["loss"][0] == list(range(1, 9))
    (note,) = log.notes
    assert note.startswith("the last record is cut off")


def test_damaged_records_are_skipped(tmp_path):
    path = write(tmp_path, *(scalars(step, loss=1.0 * step) for step in range(1, 30)))
    data = bytearray(path.read_bytes())
    one = len(scalars(9, loss=1.0))
    place = len(VERSION) + 9 * one
    data[place : place + 3] = b"\xff\xff\xff"  # the length of the tenth
    path.write_bytes(data)
    log = read_log(path)
    assert series_of(log)["loss"][0] == [*range(1, 10), *range(11, 30)]
    assert "damaged records were skipped" in log.notes


def test_a_record_whose_length_ends_in_a_zero_byte_is_found_again(tmp_path):
    one = next(
        record
        for record in (scalars(2, **{"x" * n: 1.0}) for n in range(150, 250))
        if len(record) == 16 + 256
    )
    path = write(tmp_path, scalars(1, loss=1.0))
    path.write_bytes(path.read_bytes() + b"damaged" * 3 + one)
    assert len(read_log(path).runs[0].series) == 2


def test_a_record_that_is_no_event_is_skipped(tmp_path):
    path = write(tmp_path, scalars(1, loss=1.0), framed(b"\xff" * 40), framed(b""), framed(b"\x09"),
                 framed(b"\x09" + bytes(8) + b"\x10"), scalars(2, loss=2.0))  # fmt: skip
    log = read_log(path)
    assert series_of(log)["loss"] == ([1, 2], [1.0, 2.0])
    assert log.notes == ("records that are damaged were skipped",)


def test_zeros_at_the_end_are_looked_through_quickly(tmp_path):
    path = write(tmp_path, scalars(1, loss=1.0))
    path.write_bytes(path.read_bytes() + bytes(20 << 20))
    assert series_of(read_log(path))["loss"] == ([1], [1.0])


def test_a_damaged_file_is_given_up_at_some_point(tmp_path, monkeypatch):
    monkeypatch.setattr("foreshock.core.tfrecord._MAX_TRIES", 100)
    path = write(tmp_path, scalars(1, loss=1.0))
    path.write_bytes(path.read_bytes() + b"\x01\0\0\0\0\0\0\0" * 50_000)
    log = read_log(path)
    assert "too much of the file is damaged: the rest was not read" in log.notes


def test_large_records_are_passed_over(tmp_path):
    image = framed(bytes(1000))
    length = struct.pack("<Q", 18 << 20)
    large = length + masked(length) + bytes(18 << 20) + b"sums"
    path = write(tmp_path, scalars(1, loss=1.0), image, large, scalars(2, loss=2.0))
    assert series_of(read_log(path))["loss"] == ([1, 2], [1.0, 2.0])


def test_a_restart_in_the_same_directory(tmp_path):
    write(tmp_path, *(apart(s, time=s, loss=1.0) for s in range(10, 60, 10)), started=1_700_000_000)
    write(tmp_path, *(apart(s, time=s, loss=2.0) for s in range(40, 90, 10)), started=1_700_001_000)
    (run,) = read_log(tmp_path).runs
    assert run.restarts == ((50, 40),)
    assert run.series["loss"].attempts.tolist() == [0] * 5 + [1] * 5


def test_a_session_that_starts_at_a_step_was_resumed(tmp_path):
    event = event_pb2.Event(wall_time=5.0, step=3)
    event.session_log.status = 1
    log = read_log(
        write(tmp_path, scalars(1, loss=1.0), scalars(2, loss=1.0),
              framed(event.SerializeToString()), scalars(3, loss=1.0))
    )  # fmt: skip
    assert (
        read_log(
            write(tmp_path, scalars(1, loss=1.0), framed(b"\x3a\x02\x08\x01"), scalars(2, loss=1.0))
        )
        .runs[0]
        .events
        == ()
    )
    (said,) = log.runs[0].events
    assert (said.kind, said.step) == (EventKind.RESUMED, 2)
    assert log.runs[0].restarts == ((2, 3),)


@pytest.mark.parametrize("name", ["validation", "eval", "val"])
def test_a_writer_that_evaluates(tmp_path, name):
    write(tmp_path / "train", *(scalars(s, time=s, loss=1.0) for s in range(1, 9)))
    write(tmp_path / name, *(scalars(s, time=s + 0.5, loss=2.0) for s in (4, 8)))
    log = read_log(tmp_path)
    assert log.format == "tensorboard"
    assert series_of(log) == {"loss": ([*range(1, 9)], [1.0] * 8), "eval_loss": ([4, 8], [2.0] * 2)}
    assert log.runs[0].restarts == ()


def test_writers_are_merged_by_time_over_a_restart(tmp_path):
    train = [*range(1, 9), *range(5, 13)]
    write(tmp_path, *(scalars(s, time=place, loss=1.0) for place, s in enumerate(train)))
    write(
        tmp_path / "eval",
        *(scalars(s, time=t, loss=2.0) for s, t in ((4, 3.5), (8, 7.5), (8, 11.5), (12, 15.5))),
    )
    (run,) = read_log(tmp_path).runs
    assert run.series["eval_loss"].steps.tolist() == [4, 8, 8, 12]
    assert run.series["eval_loss"].attempts.tolist() == [0, 0, 1, 1]


def test_the_parts_of_add_scalars(tmp_path):
    write(tmp_path, scalars(1, time=0, lr=0.5))
    write(tmp_path / "loss_train", *(scalars(s, time=s, loss=1.0) for s in (1, 2)))
    write(tmp_path / "loss_val", *(scalars(s, time=s, loss=2.0) for s in (1, 2)))
    log = read_log(tmp_path)
    assert series_of(log) == {
        "lr": ([1], [0.5]),
        "loss": ([1, 2], [1.0, 1.0]),
        "eval_loss": ([1, 2], [2.0, 2.0]),
    }


def test_runs_in_directories_of_their_own(tmp_path):
    for number, name in enumerate(("b", "a")):
        write(
            tmp_path / "runs" / name,
            *(scalars(s, loss=number) for s in (10, 20, 30)),
            started=1_700_000_000 + number,
        )
    write(tmp_path / "runs" / "a" / "1700000001.25", scalars(0, loss=77.0))
    log = read_log(tmp_path / "runs")
    assert [series_of(log, run)["loss"] for run in (0, 1)] == [
        ([10, 20, 30], [0.0] * 3),
        ([10, 20, 30], [1.0] * 3),
    ]


def test_a_run_in_another_directory_that_begins_earlier_is_another_one(tmp_path):
    write(tmp_path / "a", *(scalars(s, loss=1.0) for s in range(100, 120)), started=1_700_000_000)
    write(tmp_path / "b", *(scalars(s, loss=1.0) for s in range(50, 70)), started=1_700_090_000)
    assert len(read_log(tmp_path).runs) == 2


def test_a_run_that_goes_on_in_another_directory(tmp_path):
    write(tmp_path / "Jan01", *(scalars(s, loss=1.0) for s in (10, 20, 30)), started=1_700_000_000)
    write(tmp_path / "Jan02", *(scalars(s, loss=1.0) for s in (30, 40)), started=1_700_090_000)
    (run,) = read_log(tmp_path).runs
    assert run.series["loss"].steps.tolist() == [10, 20, 30, 40]


def test_recognition(tmp_path):
    path = write(tmp_path / "a", scalars(1, loss=1.0))
    assert ranking(FileSource(path).sample())[0][1].name == "tensorboard"
    (tmp_path / "a" / "notes.txt").write_text("x")
    assert ranking(FileSource(tmp_path / "a").sample())[0][1].name == "tensorboard"
    (tmp_path / "b.log").write_bytes(b"x" + path.read_bytes())
    for other in (tmp_path / "b.log", tmp_path):
        assert "tensorboard" not in [one.name for _, one in ranking(FileSource(other).sample())]


def test_a_file_without_scalars_says_so(tmp_path):
    with pytest.raises(LogError, match="no value was found"):
        read_log(write(tmp_path))


def test_plain_scalars_need_no_extra(tmp_path, monkeypatch):
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(scalars(1, loss=1.0) + scalars(300, loss=2.0))
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    assert series_of(read_log(path))["loss"] == ([1, 300], [1.0, 2.0])
    path.write_bytes(scalars(1, loss=1.0, lr=2.0))
    with pytest.raises(MissingExtra, match="logs"):
        read_log(path)
