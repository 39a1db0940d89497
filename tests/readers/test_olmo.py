# ruff: noqa: E501 - lines of logs are as long as they are
"""OLMo's blocks: a line for the step, metrics below it."""

from tests.readers.reading import certainty, first, points, read, run_of


def block(step: str, loss: str, norm: str, more: str = "") -> str:
    return (
        f"2024-05-01 09:30:00.100\thost:0\tolmo.train:908\tINFO\t[step={step}/739,328,epoch=0]\n"
        f"    optim/total_grad_norm={norm}\n"
        f"    train/CrossEntropyLoss={loss}\n"
        f"    train/Perplexity=195,153\n{more}"
        "    throughput/total_tokens=1,048,576\n"
        "    System/Peak GPU Memory (MB)=46,911\n"
    )


def test_blocks(tmp_path) -> None:
    text = (
        "    System/Peak GPU Memory (MB)=6,784\n"
        + block("1", "9.500", "231.5")
        + block("2", "1.25e-06", "0.0002")
        + "2024-05-01 09:30:00.100\thost:0\tolmo.train:99\tINFO\tRunning evaluation\n"
        + "    eval/pile/CrossEntropyLoss=9.125\n"
        + block("1,003", "nan", "1,231")
        + "2024-05-01 09:30:00.100\thost:0\tolmo.train:908\tINFO\t[step=1004/739"
    )
    run = run_of(tmp_path, text, "olmo")
    assert points(run, "loss") == [(1, 9.5), (2, 1.25e-6), (1003, None)]
    assert points(run, "grad_norm") == [(1, 231.5), (2, 0.0002), (1003, 1231.0)]
    assert points(run, "eval_pile_crossentropyloss") == [(2, 9.125)]
    assert run.total_steps == 739328
    assert set(run.series) == {"loss", "grad_norm", "epoch", "eval_pile_crossentropyloss"}


def test_blocks_of_many_metrics(tmp_path) -> None:
    more = "".join(f"    train/block {n:02}/load imbalance={n}.5\n" for n in range(60))
    run = run_of(tmp_path, block("1", "9.500", "231.5", more), "olmo")
    assert points(run, "train_block_59_load_imbalance") == [(1, 59.5)]


def test_olmo_core(tmp_path) -> None:
    text = "".join(
        f"2025-05-01 09:30:00.100\thost:0\tolmo_core.train:70\tINFO\t[step={step}/900,epoch=1,eta=2 days"
        f"9:30:00]\n    train/CE loss={loss}\n    optim/LR (group 0)=0.0003\n    optim/total grad norm="
        "0.5000\n    optim/step skipped=0.0\n    throughput/device/TPS=9,999\n"
        for step, loss in ((1, "9.500"), (2, "nan"))
    )
    run = run_of(tmp_path, text, "olmo")
    assert points(run, "loss") == [(1, 9.5), (2, None)]
    assert points(run, "grad_norm") == [(1, 0.5), (2, 0.5)]
    assert points(run, "lr") == [(1, 0.0003), (2, 0.0003)]


def test_a_block_without_end_is_bounded(tmp_path) -> None:
    log = read(
        tmp_path, block("1", "9.5", "2.5", "    x=1\n" * 5000) + block("2", "9", "2"), "olmo"
    )
    assert points(log.runs[0], "loss") == [(1, 9.5), (2, 9.0)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, block("1", "9.5", "2.5") * 3) == "olmo"
    assert certainty(tmp_path, "[step=1] loss=9.5\n[eval_step=1/9]\n", "olmo") == 0
