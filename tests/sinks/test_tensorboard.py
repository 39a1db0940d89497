"""Event files, read back with TensorBoard's own loader."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreshock.logs import read_log
from foreshock.sinks.tensorboard import TensorBoard
from tests.sinks.mirrored import HOSTILE, RUN, SERIES, a_run, alarm, notice, step

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def opened(*said: list[Any], **options: Any) -> Any:
    (mirror,) = TensorBoard(**options).mirrors(RUN)
    mirror.adopt()
    mirror.open()
    for batch in said:
        mirror.take(batch)
    return mirror


def shown(folder: Path) -> Any:
    found = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in shown(folder).Scalars(tag)]


def texts(folder: Path, tag: str) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in shown(folder).Tensors(tag)]


def test_readings_and_thresholds_share_their_names_and_what_was_undone_is_purged(
    tmp_path: Path,
) -> None:
    opened(a_run(), log_dir=str(tmp_path)).close()
    assert scalars(tmp_path, "loss/global") == [(1, 2.0), (2, 2.5), (3, 2.25)]
    assert scalars(tmp_path, "attempt") == [(1, 1.0), (2, 2.0), (3, 2.0)]
    assert scalars(tmp_path, "num_alarms") == [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert scalars(tmp_path / "thresholds", "grad_norm/global") == [(1, 5.0), (2, 6.0)]
    assert scalars(tmp_path / "thresholds", "loss/global") == [(2, 4.0)]
    tags = shown(tmp_path).Tags()["scalars"]
    assert set(tags) == {*SERIES, "attempt", "committed", "num_alarms"}


def test_what_was_decided_is_never_purged_and_no_markup(tmp_path: Path) -> None:
    opened(a_run(), log_dir=str(tmp_path)).close()
    (told,) = texts(tmp_path / "decisions", "notices/attempt-00001")
    assert told == "**plan 1 &lt;b&gt;**\n\nroll back to step 2\n&lt;i&gt;x&lt;/i&gt;"
    (alarms,) = texts(tmp_path / "decisions", "alarms/attempt-00001")
    assert alarms.startswith("* spike on loss/global at step 3: 9, threshold 4")


def test_nan_and_infinities_are_kept(tmp_path: Path) -> None:
    values = [1.0, float("nan"), float("inf"), float("-inf")]
    opened([step(at, value) for at, value in enumerate(values, 1)], log_dir=str(tmp_path)).close()
    found = [value for _, value in scalars(tmp_path, "loss/global")]
    np.testing.assert_array_equal(found, values)


def test_a_new_process_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    opened([step(at) for at in range(1, 10)], log_dir=str(tmp_path)).close()
    again = [step(at, 10.0 * at, attempt=2) for at in range(6, 9)]
    opened(again, log_dir=str(tmp_path)).close()
    expected = [(at, float(at)) for at in range(1, 6)] + [(at, 10.0 * at) for at in range(6, 9)]
    assert scalars(tmp_path, "loss/global") == expected


def test_what_is_taken_can_be_seen_before_it_is_closed(tmp_path: Path) -> None:
    mirror = opened([step(1)], [step(2)], log_dir=str(tmp_path))
    assert scalars(tmp_path, "loss/global") == [(1, 1.0), (2, 2.0)]
    mirror.close()


def test_hostile_names_are_labels_and_lie_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "tb"
    steps = [step(1, 1.0, series=HOSTILE, alarms=tuple(alarm(1, name) for name in HOSTILE))]
    opened(steps, log_dir=str(folder)).close()
    assert len(shown(folder).Tags()["scalars"]) == len(HOSTILE) + 3
    (told,) = texts(folder / "decisions", "alarms/attempt-00001")
    assert "<script>" not in told
    assert {path.name for path in tmp_path.iterdir()} == {"tb"}


def test_our_own_reader_reads_it(tmp_path: Path) -> None:
    opened([step(at, 3.0 / at) for at in range(1, 30)], log_dir=str(tmp_path)).close()
    log = read_log(tmp_path)
    assert any("loss" in name for run in log.runs for name in run.series)


class Writer:
    """What a `SummaryWriter` is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def add_scalar(self, tag: str, value: float, global_step: int, walltime: float) -> None:
        self.calls.append((tag, value, global_step))

    def add_text(self, tag: str, text: str, global_step: int, walltime: float) -> None:
        self.calls.append((tag, text, global_step))

    def flush(self) -> None:
        self.calls.append(("flush",))


def test_a_writer_of_the_loops_own_is_used_and_not_closed() -> None:
    writer = Writer()
    steps = [step(1, 2.0, limits=[4.0, 5.0, 6.0]), notice(1)]
    opened(steps, writer=writer, prefix="foreshock/").close()
    assert ("foreshock/loss/global", 2.0, 1) in writer.calls
    assert ("foreshock/threshold/loss/global", 4.0, 1) in writer.calls
    assert writer.calls[-1] == ("flush",)
    assert any(tag == "foreshock/notices/attempt-00001" for tag, *_ in writer.calls)


def test_torchs_writer_takes_it(tmp_path: Path) -> None:
    with pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("train/loss", 1.0, 1)
        opened(a_run(), writer=writer, prefix="foreshock/").close()
        writer.add_scalar("train/loss", 2.0, 4)
    assert scalars(tmp_path, "train/loss") == [(1, 1.0), (4, 2.0)]
    found = scalars(tmp_path, "foreshock/loss/global")
    assert found[-2:] == [(2, 2.5), (3, 2.25)]
