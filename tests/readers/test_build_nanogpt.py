# ruff: noqa: E501 - lines of logs are as long as they are
"""build-nanogpt and nanochat, which share `step N | name value`."""

from tests.readers.reading import certainty, first, points, run_of


def test_build_nanogpt(tmp_path) -> None:
    text = (
        "total desired batch size: 524288\n"
        "validation loss: 9.6250\n"
        "step     0 | loss: 9.500000 | lr 8.3916e-07 | norm: 15.5000 | dt: 900.25ms | tok/sec: 900.12\n"
        "HellaSwag accuracy: 2463/10042=0.2453\n"
        "step     1 | loss: nan | lr 1.6783e-06 | norm: nan | dt: 90.25ms | tok/sec: 9000.12\n"
        "validation loss: 9.1250\n"
        "step     2 | loss: 9."
    )
    run = run_of(tmp_path, text, "build_nanogpt")
    assert points(run, "loss")[:2] == [(0, 9.5), (1, None)]
    assert points(run, "grad_norm") == [(0, 15.5), (1, None)]
    assert points(run, "eval_loss") == [(0, 9.625), (1, 9.125)]
    assert set(run.series) == {"loss", "grad_norm", "lr", "eval_loss"}


def test_early_versions_use_commas(tmp_path) -> None:
    text = "step 0, loss: 9.5, dt: 900.25ms, tok/sec: 16000.5\nstep 1, loss: 9.25, dt: 1.5ms\n"
    assert points(run_of(tmp_path, text, "build_nanogpt"), "loss") == [(0, 9.5), (1, 9.25)]


def test_nanochat(tmp_path) -> None:
    text = (
        "Step 00000 | Validation bpb: 3.250000\n"
        "step 00000/21400 (0.00%) | loss: 9.500000 | grad norm: 0.5000 | lrm: 1.00 | dt: 900.25ms | "
        "tok/sec: 12,345 | mfu: 0.50 | epoch: 1 pq: 3 rg: 4 | total time: 0.00m\n"
        "step 00001/21400 (0.01%) | loss: 9.250000 | grad norm: 0.2500 | lrm: 1.00 | dt: 90.25ms | "
        "tok/sec: 112,345 | mfu: 45.50 | epoch: 1 pq: 3 rg: 5 | total time: 0.02m | eta: 90.5m\n"
        "Step 00001 | CORE metric: 0.1250\n"
    )
    run = run_of(tmp_path, text, "build_nanogpt")
    assert points(run, "loss") == [(0, 9.5), (1, 9.25)]
    assert points(run, "grad_norm") == [(0, 0.5), (1, 0.25)]
    assert points(run, "eval_bpb") == [(0, 3.25)]
    assert points(run, "core_metric") == [(1, 0.125)]
    assert run.total_steps == 21400
    assert set(run.series) == {"loss", "grad_norm", "eval_bpb", "core_metric"}


def test_nanochat_finetuning(tmp_path) -> None:
    text = (
        "Step 00000/00500 | Training loss: 1.500000| lrm: 1.000000| num_tokens: 10,500\n"
        "Step 00100 | Validation loss: 1.250000\n"
        "Step 00100/00500 | Training loss: 1.125000| lrm: 0.800000| num_tokens: 9,500\n"
    )
    run = run_of(tmp_path, text, "build_nanogpt")
    assert points(run, "loss") == [(0, 1.5), (100, 1.125)]
    assert points(run, "eval_loss") == [(100, 1.25)]


def test_recognition(tmp_path) -> None:
    assert (
        first(tmp_path, "step     0 | loss: 9.5 | lr 8.39e-07 | norm: 15.5\n" * 3)
        == "build_nanogpt"
    )
    others = "step    1/10 | loss 9.5 (+nanz)| norm 15.5 (+nanz)|\nStep 1 | loss:2.5 lr:1e-05\n"
    assert certainty(tmp_path, others, "build_nanogpt") == 0
