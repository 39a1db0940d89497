"""Text logs of OpenNMT-py."""

from collections.abc import Mapping
from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class Opennmt(TextReader):
    """`Step 50/100000; acc:  41.2; ppl: 26.1; xent: 3.26; lr: 1.0; 11270/8704 tok/s;  4 sec`.

    `xent` is the loss. A validation has lines of its own, `Validation perplexity: 5.45`; its
    bests start at infinity, which are no values.
    """

    name: ClassVar[str] = "opennmt"
    title: ClassVar[str] = "OpenNMT-py"
    specificity = 0.93
    hint = ": "
    record = (
        r"\bStep (?P<step>\d+)/ ?(?P<total_steps>\d+); (?=acc: )"
        rf"|\bValidation perplexity: (?P<eval_ppl>{NUMBER})(?=\s|\Z)"
        rf"|\bValidation accuracy: (?P<eval_accuracy>{NUMBER})(?=\s|\Z)"
    )
    pairs = rf"(?<![\w ])\s{{0,2}}(acc|ppl|xent|lr): {{1,6}}({NUMBER})(?=;|\s|\Z)"
    labels: ClassVar[Mapping[str, str]] = {"acc": "accuracy"}
