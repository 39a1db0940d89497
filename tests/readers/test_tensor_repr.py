"""Losses printed as tensors."""

from tests.readers.reading import certainty, first, points, run_of

LOG = """\
loss at batch 0 = tensor(4.5, device='cuda:0', grad_fn=<AddBackward0>)
loss at batch 5 = tensor(nan, device='cuda:0', grad_fn=<AddBackward0>)
the rest
loss at batch 10 = tensor(4.0, device='cuda:0', grad_fn=<AddBackward0>)
"""


def test_reads_value_and_step(tmp_path) -> None:
    want = [(0, 4.5), (5, None), (10, 4.0)]
    assert points(run_of(tmp_path, LOG, "tensor_repr"), "loss") == want


def test_a_tensor_alone_is_a_loss_without_a_step(tmp_path) -> None:
    text = "tensor(2.5, grad_fn=<NllLossBackward0>)\ntensor([2.25], grad_fn=<MeanBackward0>)\n"
    run = run_of(tmp_path, text, "tensor_repr")
    assert points(run, "loss") == [(1, 2.5), (2, 2.25)]
    assert not run.has_steps


def test_a_cut_line_and_other_tensors_are_left_out(tmp_path) -> None:
    text = LOG + "weights: tensor(1.5)\ntensor(3.0)\nloss at batch 15 = tensor(3."
    assert len(run_of(tmp_path, text, "tensor_repr").series["loss"]) == 3


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    assert first(tmp_path, LOG) == "tensor_repr"
    assert certainty(tmp_path, "loss at batch 5 = 4.5\n" * 3, "tensor_repr") == 0
