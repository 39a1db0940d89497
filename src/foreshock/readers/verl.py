"""Console of verl: one line a step, keys and values joined by dashes."""

import re
from typing import ClassVar

from foreshock.core.line_shape import Record
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.text_reader import NUMBER, TextReader

_UNIT = re.compile(r"(.*)\((1e-?\d{1,2})\)\Z")


class Verl(TextReader):
    """`step:7 - train/loss:0.61 - train/lr(1e-3):0.012 - train/time(s):4.2`.

    A label may carry the unit of its value; validation has a line of its own. NumPy 2 prints
    values as `np.float64(0.61)`.
    """

    name: ClassVar[str] = "verl"
    title: ClassVar[str] = "verl"
    specificity = 0.9
    hint = "step:"
    record = rf"\bstep:(?P<step>\d+) - (?=[\w.@/()%+-]+:(?:np\.\w+\()?{NUMBER})"
    pairs = rf" - ([^\s:][^:]{{0,150}}):(?:np\.\w+\()?({NUMBER})\)?(?= - |\s*$)"
    drops = rf"{COSTS}|\Aglobal_seqlen/|\Atiming|\Aperf/|\Atraining/(?:global_step|epoch)\Z"

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        step, pairs, rank = record
        for place, (label, value) in enumerate(pairs):
            if label[-1] == ")" and (unit := _UNIT.match(label)):
                pairs[place] = unit[1], value * float(unit[2])
        log.row(step, pairs, line=number_, rank=rank)
