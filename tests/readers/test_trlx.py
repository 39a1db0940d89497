"""trlX: losses before the bar, several bars and DeepSpeed's words on one line."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of

LOG = (
    "[losses/total_loss: 1.50 | losses/policy_loss: 0.25 | losses/value_loss: 3.00]:"
    "  12%|███▏      | 12/100 [00:12<01:30,  1.2it/s][RANK 0] Collecting rollouts\n"
    "[rollout 16 / 16]: 100%|██████| 16/16 [00:09<00:00,  1.7it/s]"
    "[losses/total_loss: nan | losses/policy_loss: -0.50 | losses/value_loss: 4.00]:"
    "  13%|███▎      | 13/100 [00:25<01:20,  1.3it/s]"
    "[2023-04-01 10:00:00,100] [INFO] [stage_1_and_2.py:1700:step] [deepspeed] OVERFLOW! Rank 0 "
    "Skipping step. Attempted loss scale: 256.0, reducing to 128.0\n"
)


def test_reads_the_bars_of_losses_and_the_overflow_on_their_line(tmp_path) -> None:
    run = run_of(tmp_path, LOG, "trlx")
    assert points(run, "loss") == [(12, 1.5), (13, None)]
    assert points(run, "losses_policy_loss") == [(12, 0.25), (13, -0.5)]
    assert [(one.kind, one.step) for one in run.events] == [(EventKind.OVERFLOW, 13)]
    assert run.series["loss_scale"].values.tolist() == [256.0, 128.0]
    assert run.total_steps == 100


def test_redrawn_bars_give_one_value_a_step(tmp_path) -> None:
    bar = "[losses/loss: {}]:  10%|█ | {}/40 [00:01<00:09, 1.0it/s]"
    text = "\r".join(bar.format(*one) for one in ((2.0, 3), (2.0, 4), (1.5, 4), (1.5, 5))) + "\n"
    assert points(run_of(tmp_path, text, "trlx"), "loss") == [(3, 2.0), (4, 2.0), (5, 1.5)]


def test_a_bar_cut_off_is_skipped(tmp_path) -> None:
    text = LOG + "[losses/total_loss: 1.40 | losses/pol"
    assert len(run_of(tmp_path, text, "trlx").series["loss"]) == 2


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    assert first(tmp_path, LOG) == "trlx"
    text = "Train:  12%|█▏  | 12/100 [00:12<01:30, 1.2it/s, loss=1.5]\n" * 3
    assert certainty(tmp_path, text, "trlx") == 0
