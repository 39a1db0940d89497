"""Text logs of Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and their descendants."""

from typing import ClassVar

from foreshock.core.log import EventKind
from foreshock.core.text_reader import NUMBER, Says, TextReader


class Megatron(TextReader):
    """`iteration 31215/ 115311 | ... | lm loss: 2.2E+00 | grad norm: 0.947 | ...`.

    Old versions print no colons, ranks may stand before a line, and terminals wrap it. The
    loss is printed only if it is positive: a record without one had a NaN.
    """

    name: ClassVar[str] = "megatron"
    title: ClassVar[str] = "Megatron-LM / Megatron-DeepSpeed / GPT-NeoX"
    specificity = 0.9
    hint = "iteration"
    record = r"\biteration:?\s+(?P<step>\d+)\s*/\s*(?P<total_steps>\d+)\s*\|"
    pairs = rf"\|\s*([A-Za-z][^|:]*?)(?:\s*:\s*|\s+)({NUMBER})(?=\s*(?:\||$|ms))"
    expected = ("lm loss",)
    folds = r"\|"
    events = (
        Says(
            EventKind.NONFINITE,
            rf"[Bb]ad grad_norm detected \(grad_norm=(?P<value>{NUMBER})\)",
            hint="ad grad_norm",
            signal="grad_norm",
        ),
    )
