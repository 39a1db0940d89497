"""Keras' progress text: the last bar of an epoch counts."""

import pytest

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of

OLD = (
    "Train on 60 samples\nEpoch 1/3\n\r20/60 [======>.......] - ETA: 2s - loss: 9.0000 - acc: 0.1"
    + "\x08" * 70
    + "\r60/60 [==============] - 3s 21ms/step - loss: 2.5000 - acc: 0.2500 - val_loss: 2.25\n"
    "Epoch 2/3\n60/60 [==============] - 3s - loss: nan - acc: 0.5000 - val_loss: nan\n"
    "Epoch 3/3\n30/60 [=======>......] - ETA: 1s - loss: 2.0"
)
NEW = """\
Epoch 1/2
\x1b[1m 1/60\x1b[0m \x1b[37m━━━━━━━━━━\x1b[0m \x1b[1m52s\x1b[0m 158ms/step - loss: 7.5000
\x1b[1m60/60\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m5s\x1b[0m 15ms/step - \
accuracy: 0.5 - loss: 1.5000e+00 - val_accuracy: 0.6 - val_loss: 1.25 - learning_rate: 0.001
Epoch 2/2
60/60 ━━━━━━━━━━ 4s 15ms/step - accuracy: 0.75 - loss: 1.25 - val_accuracy: 0.7 - val_loss: 1.0
60/60 ━━━━━━━━━━ 0s 5ms/step - accuracy: 0.5 - loss: 1.75
"""
QUIET = """\
Epoch 1/2
 - 3s - loss: 2.5 - val_loss: 2.25
Epoch 2/2
100/100 - 3s - 30ms/step - loss: 2.0 - val_loss: 2.0 - 3s/epoch - 30ms/step
"""


def test_only_the_last_bar_of_an_epoch_counts(tmp_path) -> None:
    run = run_of(tmp_path, OLD, "keras")
    assert points(run, "loss") == [(1, 2.5), (2, None), (3, 2.0)]
    assert points(run, "eval_loss") == [(1, 2.25), (2, None)]
    assert points(run, "acc") == [(1, 0.25), (2, 0.5)]
    assert run.total_steps == 3


def test_keras_3_and_an_evaluation_behind(tmp_path) -> None:
    run = run_of(tmp_path, NEW, "keras")
    assert points(run, "loss") == [(1, 1.5), (2, 1.25)]
    assert points(run, "eval_loss") == [(1, 1.25), (2, 1.0)]
    assert points(run, "lr") == [(1, 0.001)]


def test_quiet_forms(tmp_path) -> None:
    run = run_of(tmp_path, QUIET, "keras")
    assert points(run, "loss") == [(1, 2.5), (2, 2.0)]


def test_bars_without_heads_are_counted(tmp_path) -> None:
    bars = "30/60 [====>....] - ETA: 1s - loss: 9.0\n60/60 [========] - 3s - loss: 2.{}\n"
    text = "".join(bars.format(n) for n in (5, 4))
    assert points(run_of(tmp_path, text, "keras"), "loss") == [(1, 2.5), (2, 2.4)]


def test_hears_of_the_stop_at_a_nan(tmp_path) -> None:
    run = run_of(tmp_path, NEW + "Batch 5: Invalid loss, terminating training\n", "keras")
    assert [one.kind for one in run.events] == [EventKind.NONFINITE]


@pytest.mark.parametrize("text", [OLD, NEW, QUIET])
def test_is_recognised(tmp_path, text) -> None:
    assert first(tmp_path, text) == "keras"


def test_its_neighbour_is_not(tmp_path) -> None:
    text = "Epoch 0:  12%|█▏ | 60/500 [00:07<00:51, 8.5it/s, loss=3.2]\n" * 3
    assert certainty(tmp_path, text, "keras") == 0
    assert certainty(tmp_path, "2024-05-02 - INFO - 3/5 - loss: 2\n" * 3, "keras") == 0
