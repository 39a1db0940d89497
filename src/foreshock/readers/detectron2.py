"""Console text of detectron2 and of what is built on it."""

from typing import ClassVar

from foreshock.core.log import EventKind
from foreshock.core.log_names import COSTS
from foreshock.core.text_reader import NUMBER, Says, TextReader


class Detectron2(TextReader):
    """`[03/05 10:00:00 d2.utils.events]: eta: 0:41:00  iter: 39  total_loss: 1.9  lr: 0.0004`.

    Losses are medians of the last 20 iterations. Newer versions print the last time beside
    the mean; a log file has the name of the logger after the bracket.
    """

    name: ClassVar[str] = "detectron2"
    title: ClassVar[str] = "detectron2 console"
    specificity = 0.9
    hint = "iter: "
    record = (
        r"(?:d2\.utils\.events|utils\.events\]|events INFO|fastreid|fvcore|detectron2).{0,120}?"
        r"\biter: (?P<step>\d+)(?:/(?P<total_steps>\d+))?\s"
    )
    pairs = rf"\s([A-Za-z_][\w/.-]*): ({NUMBER})(?=\s|,|$)"
    drops = rf"{COSTS}|\Aiter\Z"
    events = (
        Says(
            EventKind.NONFINITE,
            r"Loss became infinite or NaN at iteration=\d+",
            hint="Loss became infinite",
            signal="loss",
        ),
        Says(
            EventKind.RESUMED,
            r"Starting training from iteration [1-9]",
            hint="Starting training from iteration",
        ),
    )
