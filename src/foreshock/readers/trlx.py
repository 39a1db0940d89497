"""Console of trlX: the losses of a step stand before its progress bar."""

from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class Trlx(TextReader):
    """`[losses/total_loss: 1.21 | losses/policy_loss: 0.1]:  12%|█▎  | 75/600 [01:12<...`.

    Several bars, and what DeepSpeed says, may stand on one line.
    """

    name: ClassVar[str] = "trlx"
    title: ClassVar[str] = "trlX"
    specificity = 0.9
    hint = "[loss"
    record = (
        r"\[(?P<rest>loss(?:es)?[/:][^\[\]]{1,2000})\]:\s*\d+%\|[^|\[\]]{0,1000}\|"
        r"\s*(?P<step>\d+)/(?P<total_steps>\d+) \["
    )
    pairs = rf"(?<![\w/])([A-Za-z][\w/]*):\s*({NUMBER})(?=\s*(?:\||$))"
    words_in_records = True
