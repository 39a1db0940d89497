"""Losses below the line that names their epoch or step, or below none."""

from tests.readers.reading import certainty, first, points, read, run_of

TUTORIAL = "".join(
    f"Epoch {epoch}/24\n----------\ntrain Loss: {loss} Acc: 0.6311\nval Loss: 0.25 Acc: 0.9150\n\n"
    for epoch, loss in ((0, "0.75"), (1, "nan"), (2, "0.5"))
)


def test_the_epoch_stands_above(tmp_path) -> None:
    run = run_of(tmp_path, TUTORIAL, "headed_text")
    assert points(run, "loss") == [(0, 0.75), (1, None), (2, 0.5)]
    assert points(run, "eval_loss") == [(0, 0.25), (1, 0.25), (2, 0.25)]
    assert first(tmp_path, TUTORIAL) == "headed_text"


def test_a_line_of_one_value_bears_all_its_words(tmp_path) -> None:
    text = "".join(
        f"{'#' * 40}\n      Learning iteration {n}/900\n\n"
        f"               Value function loss: {value}\n"
        "                    Surrogate loss: -0.0125\n"
        "                 Mean total reward: 25.50\n"
        for n, value in ((7, "0.5"), (8, "inf"), (9, "0.25"))
    )
    run = run_of(tmp_path, text, "headed_text")
    assert points(run, "value_function_loss") == [(7, 0.5), (8, float("inf")), (9, 0.25)]
    assert points(run, "surrogate_loss") == [(7, -0.0125), (8, -0.0125), (9, -0.0125)]


def test_without_any_step_lines_are_numbered(tmp_path) -> None:
    text = "".join(f"2024-05-01 09:30:00,500 - INFO - shape_loss {n}.5:\n" for n in range(12))
    log = read(tmp_path, text, "headed_text")
    assert points(log.runs[0], "loss") == [(n + 1, n + 0.5) for n in range(12)]
    assert any("taken for the loss" in note for note in log.notes)
    assert first(tmp_path, text) == "headed_text"


def test_settings_and_logs_of_other_kinds_are_left_to_others(tmp_path) -> None:
    settings = "MODEL:\n  LOSS_WEIGHT: 0.5\n  CENTER_LOSS_WEIGHT: 0.25\n  LOSS_TYPE: 2\n" * 3
    assert first(tmp_path, settings) == ""
    steps = "".join(f"step {n} loss 2.5\n  part loss: 1.5\n" for n in range(9))
    assert first(tmp_path, steps) == "keyed_text"
    assert certainty(tmp_path, "The loss was 2.5 at last.\n", "headed_text") == 0
