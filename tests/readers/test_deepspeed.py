# ruff: noqa: E501 - lines of logs are as long as they are
"""DeepSpeed: engines that print the same lines, and loss scales that only overflows tell."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, read, run_of

_HEAD = "[2024-05-01 09:30:00,100] [INFO] "


def engine(step: int, skipped: int = 0, lr: str = "1e-05") -> str:
    return (
        f"{_HEAD}[logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, "
        f"lr=[{lr}, {lr}], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
    )


def overflow(scale: int, to: int | None = None, rank: int = 0) -> str:
    rest = f"reducing to {to}" if to else "but hysteresis is 2. Reducing hysteresis to 1"
    return (
        f"{_HEAD}[loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank {rank} Skipping step. "
        f"Attempted loss scale: {scale}, {rest}\n"
    )


def test_engine_lines(tmp_path) -> None:
    text = (
        engine(10, 1) + f"{_HEAD}[timer.py:199:stop] epoch=0/micro_step=10/global_step=10, Run=3\n"
    )
    run = run_of(tmp_path, text + engine(20, 2, "2e-05"), "deepspeed")
    assert points(run, "num_skipped") == [(10, 1.0), (20, 2.0)]
    assert points(run, "lr") == [(10, 1e-5), (20, 2e-5)]
    assert set(run.series) == {"num_skipped", "lr"}


def test_an_overflow_tells_the_scale_before_and_after(tmp_path) -> None:
    text = overflow(4096) + overflow(4096, 2048) + engine(10) + overflow(2048, 1024)
    run = run_of(tmp_path, text, "deepspeed")
    # Two values each; with hysteresis the scale stays, and one value says so.
    assert run.series["loss_scale"].values.tolist() == [4096, 4096, 2048, 2048, 1024]
    assert [event.kind for event in run.events] == [EventKind.OVERFLOW] * 3
    assert [event.step for event in run.events] == [10, 10, 10]


def test_overflows_without_any_record_are_a_log(tmp_path) -> None:
    (run,) = read(tmp_path, overflow(512) + overflow(512, 256), "deepspeed").runs
    assert not run.has_steps
    assert run.series["loss_scale"].values.tolist() == [512, 512, 256]
    assert first(tmp_path, overflow(512) + overflow(512, 256)) == "deepspeed"


def test_a_scale_that_grew_between_overflows_is_still_the_same_engine(tmp_path) -> None:
    text = overflow(1024, 512) + engine(10) + overflow(2048, 1024) + engine(20)
    run = run_of(tmp_path, text, "deepspeed")
    assert run.series["loss_scale"].values.tolist() == [1024, 512, 2048, 1024]
    assert "loss_scale_2" not in run.series


def chat(step: int, actor: float, critic: float) -> str:
    return (
        f"epoch: 0|step: {step}|ppo_ep: 1|act_loss: {actor}|cri_loss: {critic}|unsuper_loss: 0.0\n"
        f"average reward score: {step}.5\n"
        "|E2E latency=7.99s |Gather latency=0.00s (0.00%) |Generate time=5.26s (65.81%)\n"
    )


def test_two_engines_keep_their_scales_apart(tmp_path) -> None:
    text = (
        overflow(4096) + overflow(4096) + chat(0, 0.5, 0.25)
        + overflow(4096, 2048) + overflow(4096, 2048) + chat(1, 0.25, 0.125)
        + overflow(2048, 1024) + chat(2, 0.125, 0.5) + overflow(2048, 1024) + chat(3, -0.5, 0.5)
    )  # fmt: skip
    log = read(tmp_path, text, "deepspeed")
    (run,) = log.runs
    assert run.series["loss_scale"].values.tolist() == [4096, 4096, 2048, 2048, 1024]
    assert run.series["loss_scale_2"].values.tolist() == [4096, 4096, 2048, 2048, 1024]
    assert any("several engines" in note for note in log.notes)


def test_adjacent_overflows_at_one_scale_are_two_engines(tmp_path) -> None:
    # Without hysteresis: a scale cannot have grown between two lines that follow each other.
    text = (overflow(4096, 2048) * 2 + engine(10)) + (overflow(2048, 1024) * 2 + engine(20))
    run = run_of(tmp_path, text, "deepspeed")
    assert run.series["loss_scale"].values.tolist() == [4096, 2048, 2048, 1024]
    assert run.series["loss_scale_2"].values.tolist() == [4096, 2048, 2048, 1024]


def test_ranks_that_repeat_an_overflow_are_no_engines(tmp_path) -> None:
    text = overflow(512, 256) + overflow(512, 256, rank=1) + engine(10)
    run = run_of(tmp_path, text, "deepspeed")
    assert run.series["loss_scale"].values.tolist() == [512, 256]
    assert "loss_scale_2" not in run.series


def test_rlhf_steps(tmp_path) -> None:
    text = (
        chat(0, 0.5, 0.25) + engine(10, 2) + engine(10, 1, "3e-06")
        + chat(1, -0.25, 0.125) + engine(20, 2) + engine(20, 1, "3e-06") + chat(2, 0.1, 0.2)
    )  # fmt: skip
    run = run_of(tmp_path, text, "deepspeed")
    assert points(run, "loss") == [(0, 0.5), (1, -0.25), (2, 0.1)]
    assert points(run, "critic_loss") == [(0, 0.25), (1, 0.125), (2, 0.2)]
    assert points(run, "reward") == [(0, 0.5), (1, 1.5), (2, 2.5)]
    assert points(run, "num_skipped") == [(0, 2.0), (1, 2.0)]
    assert points(run, "skipped_2") == [(0, 1.0), (1, 1.0)]
    assert points(run, "lr") == [(0, 1e-5), (1, 1e-5)]


def test_newer_rlhf_steps(tmp_path) -> None:
    text = "".join(
        f"Epoch: 0 | Step: {step} | PPO Epoch: 1 | Actor Loss: 0.{step} | Critic Loss: nan | "
        "Unsupervised Loss: 0.0\n"
        for step in (1, 2)
    )
    run = run_of(tmp_path, text, "deepspeed")
    assert points(run, "loss") == [(1, 0.1), (2, 0.2)]
    assert points(run, "critic_loss") == [(1, None), (2, None)]


def test_supervised_steps_evaluate_a_perplexity(tmp_path) -> None:
    text = "ppl: 4998.5\n" + engine(10) + "ppl: 2.5, loss: 0.75\n" + engine(20)
    run = run_of(tmp_path, text, "deepspeed")
    assert points(run, "eval_ppl") == [(10, 4998.5), (10, 2.5)]
    assert points(run, "eval_loss") == [(10, 0.75)]


def test_pipeline_engine(tmp_path) -> None:
    text = "steps: 10 loss: 2.5 iter time (s): 1.3 samples/sec: 12.3\n"
    text += "steps: 20 loss: nan iter time (s): 1.3 samples/sec: 12.3\n"
    assert points(run_of(tmp_path, text, "deepspeed"), "loss") == [(10, 2.5), (20, None)]


def test_a_truncated_last_line(tmp_path) -> None:
    text = engine(10) + f"{_HEAD}[logging.py:96:log_dist] [Rank 0] step=20, skip"
    assert points(run_of(tmp_path, text, "deepspeed"), "num_skipped") == [(10, 0.0)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, engine(10) * 3) == "deepspeed"
    assert certainty(tmp_path, "step=10, skipped=0, lr=[1e-05]\n", "deepspeed") == 0
    # Overflows alone leave room for the trainer that ran on DeepSpeed.
    assert 0 < certainty(tmp_path, overflow(512, 256), "deepspeed") < 0.5
