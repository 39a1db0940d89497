"""Composer's blocks: batches, epochs, tokens."""

from tests.readers.reading import certainty, first, points, run_of


def block(head: str, *metrics: str, kind: str = "Train") -> str:
    return f"{head}\n" + "".join(f"\t {kind} {metric}\n" for metric in metrics)


def test_batches(tmp_path) -> None:
    text = (
        block("[batch=1/900]:", "time/batch: 0", "time/sample: 0", "memory/peak_active_mem: 9.5",
              "loss/train/total: 9.5000", "metrics/train/LanguageCrossEntropy: 9.4000",
              "l2_norm/grad/global: 2.5000", "lr-DecoupledAdamW/group0: 0.0006")
        + "[Eval batch=1/8] Eval on eval data\n"
        + block("[Eval batch=8/8] Eval on eval data:", "metrics/eval/LanguageCrossEntropy: 9.2500",
                kind="Eval")
        + block("[batch=10/900]:", "loss/train/total: nan", "l2_norm/grad/global: inf")
        + "[batch=20/900]:\n\t Train loss/tr"
    )  # fmt: skip
    run = run_of(tmp_path, text, "composer")
    assert points(run, "loss") == [(1, 9.5), (10, None)]
    assert points(run, "grad_norm") == [(1, 2.5), (10, float("inf"))]
    assert points(run, "lr") == [(1, 0.0006)]
    assert points(run, "eval_loss") == [(1, 9.25)]
    assert not any("time" in name or "memory" in name for name in run.series)
    assert run.total_steps == 900


def test_epochs_and_tokens_are_counted_in_batches(tmp_path) -> None:
    text = (
        block("[epoch=1][batch=600/600]:", "time/batch: 600", "loss/train/total: 2.5")
        + block("[epoch=2][batch=10/600]:", "time/batch: 610", "loss/train/total: 2.25")
        + block("[token=4096/90000]:", "time/batch: 620", "loss/train/total: 2.125")
    )
    run = run_of(tmp_path, text, "composer")
    assert points(run, "loss") == [(600, 2.5), (610, 2.25), (620, 2.125)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, block("[batch=1/900]:", "loss/train/total: 9.5") * 3) == "composer"
    assert certainty(tmp_path, "[step=1/9,epoch=0]\n  [batch=4]\n", "composer") == 0
