"""darknet: the line of each batch, between those of its regions."""

from tests.readers.reading import certainty, first, points, run_of

TEXT = """\
 399: 5.250000, 6.000000 avg loss, 0.001000 rate, 3.514875 seconds, 25536 images
Loaded: 0.000060 seconds
Region 82 Avg IOU: 0.93, Class: 0.99, Obj: 0.99, No Obj: 0.004, .5R: 1.0, .75R: 1.0,  count: 3
Region 94 Avg IOU: -nan, Class: -nan, Obj: -nan, No Obj: 0.0, .5R: -nan, .75R: -nan,  count: 0
400: -nan, -nan avg loss, 0.001000 rate, 3.514875 seconds, 25600 images
401: 4.750000, 5.500000 avg, 0.001000 rate, 3.514875 seconds, 25664 images
"""


def test_only_the_loss_of_a_batch_can_be_nan(tmp_path) -> None:
    run = run_of(tmp_path, TEXT, "darknet")
    assert points(run, "loss") == [(399, 5.25), (400, None), (401, 4.75)]
    assert set(run.series) == {"loss", "avg_loss", "lr"}
    assert run.events == ()


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    assert first(tmp_path, TEXT) == "darknet"
    assert certainty(tmp_path, "40: 2.5, the avg of ten\n" * 3, "darknet") == 0
