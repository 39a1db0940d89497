"""Columns parted by blanks: fastai, spaCy."""

from tests.readers.reading import certainty, first, points, run_of

FASTAI = """\
epoch     train_loss  valid_loss  accuracy  time
0         2.500000    1.500000    0.495584  00:07
Better model found at epoch 0 with valid_loss value: 1.5.
1         nan         #na#        0.515584  00:07
2         1.250000    1.000000    0.525584  01:00:07
"""
SPACY = """\
ℹ Pipeline: ['tok2vec', 'ner']
E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  SCORE
---  ------  ------------  --------  ------  ------
  0       0          0.00     41.00    3.71    0.04
  0     200        120.50   5192.00   56.22    0.56
  1     400        138.50   4601.50   59.48    0.59
"""


def test_fastai(tmp_path) -> None:
    run = run_of(tmp_path, FASTAI, "aligned_table")
    assert points(run, "loss") == [(0, 2.5), (1, None), (2, 1.25)]
    assert points(run, "eval_loss") == [(0, 1.5), (2, 1.0)]
    assert "time" not in run.series
    assert first(tmp_path, FASTAI) == "aligned_table"


def test_spacy_has_a_loss_for_each_part(tmp_path) -> None:
    run = run_of(tmp_path, SPACY, "aligned_table")
    assert points(run, "loss_ner") == [(0, 41.0), (200, 5192.0), (400, 4601.5)]
    assert {"loss_tok2vec", "ents_f", "score"} < set(run.series)
    assert first(tmp_path, SPACY) == "aligned_table"


def test_prose_is_no_table(tmp_path) -> None:
    text = "each epoch has a loss\n2 3 4 5 6\n" * 3
    assert certainty(tmp_path, text, "aligned_table") <= 0.4
    assert certainty(tmp_path, "the loss of a step\n1 of 9 files\n" * 3, "aligned_table") == 0
