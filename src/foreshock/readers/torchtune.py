"""What torchtune prints: the lines of its loggers, and its progress bar."""

from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class Torchtune(TextReader):
    """`Step 12 | loss:1.412 lr:2e-05 tokens_per_second_per_gpu:310.5 grad_norm:0.91`.

    The progress bar says `1|12|Loss: 1.412:   3%|…`: epoch, step, loss.
    """

    name: ClassVar[str] = "torchtune"
    title: ClassVar[str] = "torchtune"
    specificity = 0.88
    hint = "oss:"
    record = (
        r"(?:\bStep (?=\d{1,18} \| [\w/.-]{1,60}:[-+.\dni])|\b\d{1,9}\|(?=\d{1,18}\|Loss: ))"
        r"(?P<step>\d+) ?\| ?(?P<rest>.*)"
    )
    pairs = rf"([A-Za-z][\w/.-]{{0,60}}):\s?({NUMBER})(?=[\s:]|\Z)"
    drops = r"tokens_per_second|memory|num_tokens"
