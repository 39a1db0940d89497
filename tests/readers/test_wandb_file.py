"""W&B's offline files, framed here by hand."""

import struct
import sys
import zlib

import numpy as np
import pytest

from foreshock.core.errors import LogError, MissingExtra
from foreshock.core.log import EventKind
from foreshock.logs import find_logs, ranking, read_log
from foreshock.source import FileSource

pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")

BLOCK = 32768


def framed(*records):
    """LevelDB's log format, behind W&B's header."""
    out = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in records:
        rest, is_first = record, True
        while is_first or rest:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                room = BLOCK
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[
                is_first, not rest
            ]
            crc = zlib.crc32(part, zlib.crc32(bytes([kind])))
            out += struct.pack("<IHB", crc, len(part), kind) + part
            is_first = False
    return bytes(out)


def history(step, number=0, **values):
    record = pb.Record(num=number)
    record.history.step.num = step
    for key, value in values.items():
        item = record.history.item.add(value_json=value if isinstance(value, str) else repr(value))
        parts = key.split("__")
        if len(parts) > 1:
            item.nested_key.extend(parts)
        else:
            item.key = key
    return record.SerializeToString()


def steps_and_values(log, run=0):
    return {
        name: (one.steps.tolist(), one.values.tolist())
        for name, one in log.runs[run].series.items()
    }


@pytest.fixture
def write(tmp_path):
    def write(*records, name="run-abc.wandb"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(framed(*records))
        return path

    return write


def test_history_becomes_series(write):
    log = read_log(
        write(
            *(
                history(s, loss=3.0 / (s + 1), lr=1e-3, _runtime=5.0, _timestamp=1.7e9)
                for s in range(3)
            )
        )
    )
    assert (log.format, log.notes, log.num_lines) == ("wandb_file", (), 3)
    assert steps_and_values(log) == {
        "loss": ([0, 1, 2], [3.0, 1.5, 1.0]),
        "lr": ([0, 1, 2], [1e-3] * 3),
    }


def test_numbers_as_json_spells_them(write):
    log = read_log(
        write(
            history(1, loss="NaN", lr='"NaN"', grad_norm="-Infinity", epoch="1"),
            history(2, loss='"Infinity"', lr="null", grad_norm="1e999", epoch="9" * 5000),
            history(3, loss="true", lr='"7"', grad_norm='{"a": 1}', epoch="[1]", x="nan"),
        )
    )
    series = log.runs[0].series
    np.testing.assert_equal(series["loss"].values, [np.nan, np.inf])
    np.testing.assert_equal(series["lr"].values, [np.nan])
    np.testing.assert_equal(series["grad_norm"].values, [-np.inf, np.inf])
    np.testing.assert_equal(series["epoch"].values, [1.0, np.inf])
    assert "x" not in series


def test_numbers_in_fields_of_their_own(write):
    if "value" not in pb.HistoryItem.DESCRIPTOR.oneofs_by_name:
        pytest.skip("this wandb is older")
    record = pb.Record()
    record.history.step.num = 4
    for key, field, value in (
        ("loss", "number", 2.5), ("grad_norm", "text", "NaN"), ("lr", "integer", 3),
        ("epoch", "json", "7"), ("flag", "boolean", True), ("word", "text", "5"),
    ):  # fmt: skip
        setattr(record.history.item.add(key=key), field, value)
    record.history.item.add(key="none").none = 0
    np.testing.assert_equal(
        {
            name: one.values
            for name, one in read_log(write(record.SerializeToString())).runs[0].series.items()
        },
        {"loss": [2.5], "grad_norm": [np.nan], "lr": [3.0], "epoch": [7.0]},
    )


def test_nested_keys(write):
    log = read_log(write(history(1, train__loss=1.0, val__loss=2.0)))
    assert steps_and_values(log) == {"loss": ([1], [1.0]), "eval_loss": ([1], [2.0])}


def test_the_step_that_the_program_names_goes_before_the_count_of_calls(write):
    rows = [history(n, loss=1.0 * n, **{"train/global_step": 10 * n}) for n in range(1, 400)]
    log = read_log(write(*rows))
    assert steps_and_values(log)["loss"][0] == [10 * n for n in range(1, 400)]
    assert set(log.runs[0].series) == {"loss"}


def test_a_step_that_few_rows_name_does_not(write):
    rows = [history(n, loss=1.0, **({"global_step": n * 10} if n % 2 else {})) for n in range(1, 9)]
    assert steps_and_values(read_log(write(*rows)))["loss"][0] == [*range(1, 9)]


def test_records_over_several_blocks(write):
    long = history(2, loss=2.0, note='"' + "x" * 100_000 + '"')
    log = read_log(
        write(history(1, loss=1.0), long, *(history(n, loss=n * 1.0) for n in range(3, 3000)))
    )
    assert steps_and_values(log)["loss"] == ([*range(1, 3000)], [float(n) for n in range(1, 3000)])


def test_a_cut_file_gives_what_is_whole(write):
    path = write(*(history(n, loss=1.0) for n in range(1, 10)))
    data = path.read_bytes()
    size = len(history(9, loss=1.0)) + 7
    for cut in (1, 7, size - 8):
        path.write_bytes(data[:-cut])
        log = read_log(path)
        assert steps_and_values(log)["loss"][0] == [*range(1, 9)]
        assert log.notes[0].startswith("the last record is cut off")


def test_damage_costs_the_rest_of_its_block(write):
    path = write(*(history(n, loss=1.0 * n) for n in range(1, 4000)))
    data = bytearray(path.read_bytes())
    data[BLOCK + 100] ^= 0xFF
    path.write_bytes(data)
    log = read_log(path)
    steps = steps_and_values(log)["loss"][0]
    assert steps[0] == 1
    assert steps[-1] == 3999
    assert 2000 < len(steps) < 3999 - 500
    assert steps == sorted(steps)
    assert log.notes == ("records that are damaged were skipped",)


def test_a_record_that_is_no_message_is_skipped(write):
    log = read_log(write(b"\xff\xff\xff", history(1, loss=1.0)))
    assert steps_and_values(log)["loss"] == ([1], [1.0])
    assert log.notes == ("records that are damaged were skipped",)


def test_facts_and_the_end(write):
    config = pb.Record()
    config.run.config.update.add(key="bf16", value_json="true")
    config.run.config.update.add(key="secret", value_json='"x"')
    config.run.resumed = True
    late = pb.Record()
    late.config.update.add(key="torch_dtype", value_json='"bfloat16"')
    end = pb.Record()
    end.exit.exit_code = 1
    log = read_log(
        write(
            *(one.SerializeToString() for one in (config, late)),
            history(5, loss=1.0),
            end.SerializeToString(),
        )
    )
    assert log.facts == {"bf16": "true", "torch_dtype": "bfloat16"}
    assert [(event.kind, event.step) for event in log.runs[0].events] == [
        (EventKind.RESUMED, 5),
        (EventKind.STOPPED, 5),
    ]


def test_the_directory_of_a_run(write, tmp_path):
    folder = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    write(history(1, loss=1.0), name=folder.relative_to(tmp_path) / "run-abc.wandb")
    (folder / "files").mkdir()
    (folder / "files" / "requirements.txt").write_text("numpy==2.0\ntorch==2.9.1\n")
    (folder / "files" / "output.log").write_text("hello\n")
    assert find_logs([tmp_path]) == [folder]
    log = read_log(folder)
    assert log.facts == {"torch": "2.9.1"}
    assert steps_and_values(log)["loss"] == ([1], [1.0])


def test_a_directory_without_the_file_is_read_from_its_output(tmp_path):
    folder = tmp_path / "run-20260101_000000-abc" / "files"
    folder.mkdir(parents=True)
    (folder / "output.log").write_text(
        "".join(
            f" iteration {n}/ 100 | lm loss: {n}.0E+00 | grad norm: 1.0 |\n" for n in range(1, 9)
        )
    )
    log = read_log(tmp_path / "run-20260101_000000-abc")
    assert (log.format, len(log.runs[0].series["loss"])) == ("megatron", 8)


def test_recognition(write, tmp_path):
    assert ranking(FileSource(write(history(1, loss=1.0))).sample())[0][1].name == "wandb_file"
    (tmp_path / "x.wandb").write_bytes(b"W&B:")
    assert ranking(FileSource(tmp_path / "x.wandb").sample()) == []


def test_a_file_without_history_says_so(write):
    with pytest.raises(LogError, match="no value was found"):
        read_log(write())


def test_the_package_is_named_if_it_is_missing(write, monkeypatch):
    path = write(history(1, loss=1.0))
    monkeypatch.setitem(sys.modules, "wandb.proto", None)
    with pytest.raises(MissingExtra, match="logs"):
        read_log(path)
