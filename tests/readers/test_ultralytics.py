"""Ultralytics' tables: columns named by a header, redrawn rows, validation below."""

from tests.readers.reading import certainty, first, points, read, run_of

HEAD = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
ROW = "      {}/20      5.1G   {}         22        640: {}%|███| 9/9 [00:41<00:00,  1.3it/s]"
TEST = (
    "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)\n"
    "                   all         50        120      0.5       0.25      0.125      0.0625\n\n"
)
LOG = (
    HEAD
    + ROW.format(1, "9.5  9.5  9.5", " 10")
    + "\r"
    + ROW.format(1, "1.5  2.0  1.25", "100")
    + "\n"
    + TEST
    + HEAD
    + ROW.format(2, "1.0  nan  1.25", "100")
    + "\n"
    + TEST
)


def test_the_last_drawing_of_a_row_counts(tmp_path) -> None:
    log = read(tmp_path, LOG, "ultralytics")
    run = log.runs[0]
    assert points(run, "loss") == [(1, 4.75), (2, None)]
    assert points(run, "box_loss") == [(1, 1.5), (2, 1.0)]
    assert points(run, "eval_map50") == [(1, 0.125), (2, 0.125)]
    assert points(run, "eval_map50_95") == [(1, 0.0625), (2, 0.0625)]
    assert any("sum" in note for note in log.notes)
    assert run.total_steps == 20
    assert "instances" not in run.series


def test_the_header_may_come_later_or_never(tmp_path) -> None:
    text = LOG[len(HEAD) :]
    assert points(run_of(tmp_path, text, "ultralytics"), "cls_loss") == [(1, 2.0), (2, None)]
    text = LOG.replace(HEAD, "")
    assert points(run_of(tmp_path, text, "ultralytics"), "cls_loss") == [(1, 2.0), (2, None)]


def test_older_and_other_tables(tmp_path) -> None:
    text = """\
     Epoch   gpu_mem       box       obj       cls     total   targets  img_size
     0/299     2.75G    0.5    0.25    0.125    0.875       141       640: 100%|##| 9/9 [00:07<00]
               Class     Images     Labels          P          R     mAP@.5 mAP@.5:.95:
                 all        128        929      0.5      0.25      0.125     0.0625
"""
    run = run_of(tmp_path, text, "ultralytics")
    assert points(run, "loss") == [(0, 0.875)]
    assert points(run, "eval_p") == [(0, 0.5)]
    text = """\
      Epoch    GPU_mem       loss  Instances       Size
        1/9      0.5G      1.75         16        224: 100% ━━━━━━━━ 9/9 1.3it/s 0:07
               classes   top1_acc   top5_acc: 100% ━━━━━━ 2/2 2.0it/s 0:01
                   all      0.625      0.875
"""
    run = run_of(tmp_path, text, "ultralytics")
    assert points(run, "loss") == [(1, 1.75)]
    assert points(run, "eval_top5_acc") == [(1, 0.875)]


def test_a_cut_row_keeps_what_is_whole(tmp_path) -> None:
    run = run_of(tmp_path, LOG + HEAD + "      3/20      5.1G   1.0", "ultralytics")
    assert len(run.series["loss"]) == 2


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    assert first(tmp_path, LOG) == "ultralytics"
    text = "epoch,train/box_loss,train/cls_loss\n1,1.5,2.0\n2,1.4,1.9\n"
    assert certainty(tmp_path, text, "ultralytics") == 0
