"""llm.c's main.log, and the first logs of modded-nanogpt."""

from tests.readers.reading import certainty, first, points, read, run_of

TEXT = (
    "s:0 tel:9.6250\ns:0 trl:9.5000 lr:0.000001 norm:15.50\ns:1 trl:nan lr:0.000002 norm:-nan\n"
    "s:2 trl:9.2500 lr:0.000003 norm:1.50\ns:2 tel:9.1250\ns:2 eval:0.2500\n"
)


def test_rows(tmp_path) -> None:
    run = run_of(tmp_path, TEXT + "s:3 trl:", "llmc_log")
    assert points(run, "loss") == [(0, 9.5), (1, None), (2, 9.25)]
    assert points(run, "grad_norm") == [(0, 15.5), (1, None), (2, 1.5)]
    assert points(run, "lr") == [(0, 1e-6), (1, 2e-6), (2, 3e-6)]
    assert points(run, "eval_loss") == [(0, 9.625), (2, 9.125)]
    assert points(run, "eval_accuracy") == [(2, 0.25)]


def test_two_runs_in_one_file(tmp_path) -> None:
    runs = read(tmp_path, "".join(f"s:{n} trl:{n}.5\n" for n in (0, 1, 2, 3)) * 2, "llmc_log").runs
    assert [points(run, "loss") for run in runs] == [[(0, 0.5), (1, 1.5), (2, 2.5), (3, 3.5)]] * 2


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, TEXT) == "llmc_log"
    assert certainty(tmp_path, "step:1/900 train_loss:9.5\nclass:0 trl:9\n", "llmc_log") == 0
