"""Framed tables of Baselines, Stable-Baselines 3, guided diffusion."""

from tests.readers.reading import certainty, first, points, run_of


def _sb3(step: int, loss: str, reward: str = "-90.5") -> str:
    return (
        "-----------------------------------------\n"
        "| rollout/                |             |\n"
        f"|    ep_rew_mean          | {reward:<11} |\n"
        "| time/                   |             |\n"
        "|    fps                  | 900         |\n"
        f"|    total_timesteps      | {step:<11} |\n"
        "| train/                  |             |\n"
        f"|    loss                 | {loss:<11} |\n"
        "|    value_loss           | 2.5         |\n"
        "-----------------------------------------\n"
    )


def test_a_table_is_a_row_and_heads_name_what_is_below(tmp_path) -> None:
    text = "Using cpu device\n" + "".join(
        _sb3(2048 * n, loss) for n, loss in ((1, "0.5"), (2, "nan"), (3, "0.25"))
    )
    run = run_of(tmp_path, text, "logger_tables")
    assert points(run, "loss") == [(2048, 0.5), (4096, None), (6144, 0.25)]
    assert [one.label for one in run.series.values()] == [
        "rollout/ep_rew_mean", "train/loss", "train/value_loss",
    ]  # fmt: skip
    assert first(tmp_path, text) == "logger_tables"


def test_steps_that_are_rounded_are_counted_on(tmp_path) -> None:
    text = "".join(
        f"------------------\n| grad_norm | 1.5 |\n| loss | {n}.5 |\n| samples | 40 |\n"
        f"| step | {f'{step:.3g}' if step >= 1000 else step} |\n"
        for n, step in enumerate(range(900, 100_000, 10))
    )
    run = run_of(tmp_path, text, "logger_tables")
    assert run.series["loss"].steps.tolist() == list(range(900, 100_000, 10))


def test_a_table_of_markdown_is_none(tmp_path) -> None:
    table = "| name | loss | note |\n|---|---|---|\n| a | 2.5 | good |\n| b | 2.25 | better |\n"
    assert certainty(tmp_path, table * 3, "logger_tables") == 0
