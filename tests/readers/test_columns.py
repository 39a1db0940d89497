"""Bare columns, and what is not."""

from tests.readers.reading import certainty, first, points, read

LOG = "100 2.5\n110 2.25\nSaving the model\n120 nan\n130 2.0\n140 1.75\n"


def test_reads_steps_and_losses_and_says_what_it_took(tmp_path) -> None:
    log = read(tmp_path, LOG, "columns")
    want = [(100, 2.5), (110, 2.25), (120, None), (130, 2.0), (140, 1.75)]
    assert points(log.runs[0], "loss") == want
    assert any("no names" in note for note in log.notes)


def test_further_columns_keep_their_place(tmp_path) -> None:
    run = read(tmp_path, "1\t2.5\t1e-4\n2\t2.25\t2e-4\n", "columns").runs[0]
    assert points(run, "column_3") == [(1, 1e-4), (2, 2e-4)]


def test_a_cut_line_is_no_row(tmp_path) -> None:
    assert len(read(tmp_path, LOG + "150", "columns").runs[0].series["loss"]) == 5


def test_huge_and_odd_numbers_do_no_harm(tmp_path) -> None:
    odd = "9" * 400 + " 1.0\n-5 1.0\n150 1e999\n160 " + "1" * 5000 + "\n"
    assert len(read(tmp_path, LOG + odd, "columns").runs[0].series["loss"]) >= 5


def test_is_recognised_and_what_only_holds_numbers_is_not(tmp_path) -> None:
    assert first(tmp_path, LOG) == "columns"
    assert certainty(tmp_path, "1 2\n2 3\n", "columns") == 0
    assert certainty(tmp_path, "5 1\n4 1\n3 1\n2 1\n1 1\n", "columns") == 0
    assert certainty(tmp_path, LOG + "words and more words\n" * 9, "columns") == 0
