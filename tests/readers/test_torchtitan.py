# ruff: noqa: E501 - lines of logs are as long as they are
"""torchtitan: colours, ranks, and evaluations that look like steps."""

from tests.readers.reading import certainty, first, points, run_of

_HEAD = "[titan] 2025-05-01 09:30:00,100 - root - INFO - "


def line(step: int, loss: str, norm: str, head: str = _HEAD) -> str:
    return (
        f"{head}\x1b[31mstep: {step:2}  \x1b[32mloss: {loss:>8}  \x1b[38;2;180;60;0mgrad_norm: "
        f"{norm:>7}  \x1b[38;2;54;234;195mmemory: 40.10GiB(50.20%)  \x1b[34mtps: 5,210  "
        "\x1b[36mtflops: 1,180.10  \x1b[35mmfu: 31.00%\x1b[39m\n"
    )


def test_rows(tmp_path) -> None:
    text = (
        line(1, "9.50000", "1.5000")
        + f"{_HEAD}\x1b[33mvalidate step:  1  \x1b[32mloss:  9.6250  \x1b[36mmemory:  9.99GiB(9.90%)  "
        "\x1b[34mtps: 9,999\x1b[39m\n"
        + line(10, "nan", "inf") + line(120, "9.25000", "0.5000") + line(130, "9", "1")[:60]
    )  # fmt: skip
    run = run_of(tmp_path, text, "torchtitan")
    assert points(run, "loss") == [(1, 9.5), (10, None), (120, 9.25)]
    assert points(run, "grad_norm") == [(1, 1.5), (10, float("inf")), (120, 0.5)]
    assert points(run, "eval_loss") == [(1, 9.625)]
    assert len(run.series) == 3


def test_colours_that_lost_their_escape(tmp_path) -> None:
    text = (line(1, "9.5", "1.5") + line(2, "9.25", "2.5")).replace("\x1b", "")
    run = run_of(tmp_path, text, "torchtitan")
    assert points(run, "loss") == [(1, 9.5), (2, 9.25)]
    assert points(run, "grad_norm") == [(1, 1.5), (2, 2.5)]


def test_every_rank_prints(tmp_path) -> None:
    text = "".join(
        line(step, f"{step + rank}.5", "1.5", f"[rank{rank}]: {_HEAD}")
        for step in (1, 2, 3)
        for rank in (0, 1, 2)
    )
    assert points(run_of(tmp_path, text, "torchtitan"), "loss") == [(1, 1.5), (2, 2.5), (3, 3.5)]


def test_old_versions_print_no_norm(tmp_path) -> None:
    text = "".join(
        f"step: {step:2}  loss:  {step}.5000  memory: 40.10GiB(50.20%)  tps: 5210  mfu: 31.00%\n"
        for step in (1, 10)
    )
    run = run_of(tmp_path, text, "torchtitan")
    assert points(run, "loss") == [(1, 1.5), (10, 10.5)]
    assert set(run.series) == {"loss"}


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line(1, "9.5", "1.5") * 3) == "torchtitan"
    assert certainty(tmp_path, "step: 5 loss: 9.5\ncompleted step: 5, loss: 9\n", "torchtitan") == 0
