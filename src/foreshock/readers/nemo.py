"""What NeMo prints: lines of its progress printer, or a Lightning progress bar."""

from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class Nemo(TextReader):
    """`Training epoch 0, iteration 4/99 | lr: 1e-06 | global_step: 4 | reduced_train_loss: 9.5`.

    The iteration is counted within the epoch; `global_step` is the step. Progress bars print
    the same as `[…, reduced_train_loss=9.5, global_step=4.000, …]`, often several times a step.
    """

    name: ClassVar[str] = "nemo"
    title: ClassVar[str] = "NVIDIA NeMo"
    specificity = 0.92
    hint = "reduced_train_loss"
    record = r"\bglobal_step(?:: |=)(?P<step>\d+)"
    pairs = rf"(?:\| |, |\[)([A-Za-z][\w ./-]{{0,60}}?)(?:: |=)({NUMBER})(?= \||,|\]|\s*\Z)"
    whole_line = True
    drops = r"(?i)step_timing|consumed|global_step|batch_size|memory|v_num|tflops|iteration|it/s"
