"""build-nanogpt's log.txt: bare triples."""

from tests.readers.reading import certainty, first, points, run_of

TEXT = "0 val 9.6250\n0 hella 0.2500\n0 train 9.500000\n1 train nan\n2 train 9.125000\n2 val 9.0\n"


def test_triples(tmp_path) -> None:
    run = run_of(tmp_path, TEXT + "3 tra", "build_nanogpt_log")
    assert points(run, "loss") == [(0, 9.5), (1, None), (2, 9.125)]
    assert points(run, "eval_loss") == [(0, 9.625), (2, 9.0)]
    assert points(run, "eval_hellaswag") == [(0, 0.25)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, TEXT) == "build_nanogpt_log"
    assert certainty(tmp_path, "0 9.5\n1 9.25\n3 train of thoughts\n", "build_nanogpt_log") == 0
