"""What nanoGPT and lit-llama print."""

from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class Nanogpt(TextReader):
    """`iter 310: loss 3.12, time 900.00ms, mfu 15.3%`, `step 300: train loss 3.2, val loss 3.3`.

    The two losses of an evaluation are estimates over many batches. lit-llama and the first
    lit-gpt print `iter 3 step 1: loss 4.2, time: 90ms`, where the iteration is counted, and
    `step 40: val loss 3.9`.
    """

    name: ClassVar[str] = "nanogpt"
    title: ClassVar[str] = "nanoGPT / lit-llama"
    specificity = 0.85
    hint = "loss "
    record = r"\b(?:iter|step) (?P<step>\d+)(?: step \d+)?: (?=(?:train |val )?loss [-\d.nNiI])"
    pairs = rf"\b(train loss|val loss|loss) ({NUMBER})(?=,|\s|\Z)"
