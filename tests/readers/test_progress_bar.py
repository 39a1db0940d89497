"""Bars that carry a loss."""

import pytest

from tests.readers.reading import certainty, first, points, run_of

BAR = "Epoch {}:  10%|█ | {}/20 [00:07<00:51, 8.5it/s, v_num=0, train_loss={}]"
LIGHTNING = (
    "\r".join(
        BAR.format(*one)
        for one in ((0, 1, "2.50"), (0, 1, "2.50"), (0, 2, "nan.0"), (1, 1, "2.00"))
    )
    + "\n"
)
DESCRIBED = (
    "\r".join(
        f"train loss: {loss} lr: 1e-4:  {n}%|█ | {n}/100 [00:0{n}<01:00,  1.5it/s]"
        for n, loss in ((1, 3.5), (2, 3.25))
    )
    + "\n"
)
PPO = (
    "\r".join(
        f"Train epoch [1/2]:  {n}0%|█ | {n}/10 [00:21<01:00,  2.1s/it, policy_loss=0.{n}, kl=0.5]"
        for n in (1, 2)
    )
    + "\n"
)
RICH = "Epoch 0/9 ━━━━ 3/20 0:00:01 • 0:00:10 9.1it/s v_num: 0 train_loss: 2.25\n"


def test_lightning_counts_epochs_from_zero(tmp_path) -> None:
    run = run_of(tmp_path, LIGHTNING, "progress_bar")
    assert points(run, "loss") == [(1, 2.5), (2, None), (21, 2.0)]
    assert points(run_of(tmp_path, RICH, "progress_bar"), "loss") == [(3, 2.25)]


def test_a_nan_that_is_redrawn_over_a_number_is_kept(tmp_path) -> None:
    text = "\r".join(BAR.format(0, 1, loss) for loss in ("2.50", "nan", "2.25")) + "\n"
    assert points(run_of(tmp_path, text, "progress_bar"), "loss") == [(1, None)]


def test_losses_before_the_bar(tmp_path) -> None:
    run = run_of(tmp_path, DESCRIBED, "progress_bar")
    assert points(run, "loss") == [(1, 3.5), (2, 3.25)]
    assert points(run, "lr") == [(1, 1e-4), (2, 1e-4)]
    assert run.total_steps == 100


def test_policies(tmp_path) -> None:
    run = run_of(tmp_path, PPO, "progress_bar")
    assert points(run, "loss") == [(1, 0.1), (2, 0.2)]
    assert points(run, "kl") == [(1, 0.5), (2, 0.5)]


def test_of_a_bar_of_evaluation_the_end_counts(tmp_path) -> None:
    bar = "Validation:  50%|█ | {}/4 [00:01<00:01, 9.5it/s, loss={}]"
    text = LIGHTNING + "\r".join((bar.format(2, 9.0), bar.format(4, 2.75))) + "\n"
    assert points(run_of(tmp_path, text, "progress_bar"), "eval_loss") == [(21, 2.75)]


def test_unknown_ends_and_cut_bars(tmp_path) -> None:
    text = "7it [00:05, 1.5it/s, loss=2.5]\r8it [00:06, 1.5it/s, loss=2.25]\r9it [00:07, 1.5it/s, l"
    assert points(run_of(tmp_path, text, "progress_bar"), "loss") == [(7, 2.5), (8, 2.25)]


@pytest.mark.parametrize("text", [LIGHTNING, DESCRIBED, PPO])
def test_is_recognised(tmp_path, text) -> None:
    assert first(tmp_path, text) == "progress_bar"


def test_a_bar_without_a_loss_is_none(tmp_path) -> None:
    text = "Loading:  12%|█▏ | 60/500 [00:07<00:51, 8.5it/s]\n" * 5
    assert certainty(tmp_path, text, "progress_bar") == 0
