"""The `log.txt` of Karpathy's build-nanogpt."""

from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class BuildNanogptLog(TextReader):
    """`12 train 9.541200`, `250 val 6.1305`, `250 hella 0.2510`: a step, what, a value."""

    name: ClassVar[str] = "build_nanogpt_log"
    title: ClassVar[str] = "build-nanogpt log.txt"
    specificity = 0.92
    hint = " "
    record = (
        rf"\A(?P<step>\d+) (?:train (?P<loss>{NUMBER})|val (?P<val_loss>{NUMBER})"
        rf"|hella (?P<eval_hellaswag>{NUMBER}))\s*\Z"
    )
