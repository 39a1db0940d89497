"""The `main.log` of llm.c, and the first logs of modded-nanogpt."""

from collections.abc import Mapping
from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class LlmcLog(TextReader):
    """`s:12 trl:9.5412 lr:0.000010 norm:4.31`, `s:250 tel:6.1305`, `s:250 eval:0.2510`.

    `trl` is the training loss, `tel` the validation loss, and `eval` a share of right answers.
    """

    name: ClassVar[str] = "llmc_log"
    title: ClassVar[str] = "llm.c main.log"
    specificity = 0.93
    hint = "s:"
    record = r"\As:(?P<step>\d+) (?=(?:trl|tel|eval):)"
    pairs = rf" (trl|tel|eval|lr|norm):({NUMBER})(?= |\Z)"
    labels: ClassVar[Mapping[str, str]] = {"eval": "eval_accuracy"}
