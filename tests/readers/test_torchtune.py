"""torchtune: its loggers' lines, and its bar."""

from tests.readers.reading import certainty, first, points, run_of


def line(step: int, loss: str) -> str:
    return f"Step {step} | loss:{loss} lr:2e-05 tokens_per_second_per_gpu:310.5 grad_norm:0.5 \n"


def test_rows(tmp_path) -> None:
    run = run_of(
        tmp_path, line(1, "2.5") + line(2, "nan") + line(3, "2.25") + "Step 4 | lo", "torchtune"
    )
    assert points(run, "loss") == [(1, 2.5), (2, None), (3, 2.25)]
    assert points(run, "lr") == [(1, 2e-5), (2, 2e-5), (3, 2e-5)]
    assert points(run, "grad_norm") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert len(run.series) == 3


def test_the_bar_redraws_a_step(tmp_path) -> None:
    bar = "\r1|{}|Loss: {}:   3%|▎         | {}/900 [00:31<15:10,  1.2s/it]"
    text = bar.format(1, "2.5", 1) + bar.format(1, "2.5", 2) + bar.format(2, "2.25", 2) + "\n"
    assert points(run_of(tmp_path, text, "torchtune"), "loss") == [(1, 2.5), (2, 2.25)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line(1, "2.5") * 3) == "torchtune"
    assert certainty(tmp_path, "Step 00250 | Validation bpb: 0.98\nStep 1 | x\n", "torchtune") == 0
