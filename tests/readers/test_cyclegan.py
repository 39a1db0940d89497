"""CycleGAN's loss_log.txt: losses without a total, sessions in one file."""

from foreshock.inspection.inspect import inspect_log
from tests.readers.reading import first, points, read, run_of

_HEAD = "================ Training Loss (Sat Jun  6 16:47:21 2020) ================\n"


def _line(epoch: int, iters: int, value: str = "0.500", head: str = "", comma: str = "") -> str:
    return (
        f"{head}(epoch: {epoch}, iters: {iters}, time: 0.334, data: 0.702) {comma} "
        f"D_A: {value}{comma} G_A: 0.250{comma} cycle_A: 2.500{comma} \n"
    )


def test_every_value_is_a_loss_of_its_own(tmp_path) -> None:
    text = _HEAD + _line(1, 100) + _line(1, 200, "0.250") + _line(2, 50, "0.125")
    run = run_of(tmp_path, text, "cyclegan")
    assert points(run, "loss_d_a") == [(100, 0.5), (200, 0.25), (250, 0.125)]
    assert set(run.series) == {"loss_d_a", "loss_g_a", "loss_cycle_a", "epoch"}
    assert first(tmp_path, text) == "cyclegan"
    text = "".join(_line(1, n, head="[Rank 0] ", comma=",") for n in (100, 200))
    assert points(run_of(tmp_path, text, "cyclegan"), "loss_d_a") == [(100, 0.5), (200, 0.5)]


def test_a_session_that_begins_anew_is_another_run(tmp_path) -> None:
    one = _HEAD + "".join(_line(epoch, 100) for epoch in range(1, 6))
    log = read(tmp_path, one + one, "cyclegan")
    assert len(log.runs) == 2
    goes_on = _HEAD + "".join(_line(epoch, 100) for epoch in range(6, 9))
    assert len(read(tmp_path, one + goes_on, "cyclegan").runs) == 1


def test_a_part_that_becomes_nan_is_trouble(tmp_path) -> None:
    text = "".join(_line(1, 100 * n, "nan" if n > 5 else "0.5") for n in range(1, 10))
    found = inspect_log(read(tmp_path, text, "cyclegan"))
    assert str(found.run_class) == "nan"
    assert found.worst.nan_from_step == 600
