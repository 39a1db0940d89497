"""Text logs of Hugging Face's m4 trainer (IDEFICS, OBELICS)."""

import re
from collections.abc import Mapping
from typing import ClassVar

from foreshock.core.log_names import COSTS
from foreshock.core.text_reader import NUMBER, TextReader


class Idefics(TextReader):
    """`iteration:  350/9000   4% | elapsed time: 00:41:10 | per_token_loss: 4.06 | z_loss: 9.1 |`.

    Validation has its own line: `Validation logs: val_per_token_loss: 3.9 | ...`.
    """

    name: ClassVar[str] = "idefics"
    title: ClassVar[str] = "HF m4 / IDEFICS"
    specificity = 0.92
    hint = "_loss: "
    record = (
        r"\biteration:\s*(?P<step>\d+)\s*/\s*(?P<total_steps>\d+)\s+\d+% \|"
        r"|\bValidation logs:"
    )
    pairs = rf"(?:\||logs:)\s*([A-Za-z]\w*):\s*({NUMBER})(?=\s*(?:\||$))"
    labels: ClassVar[Mapping[str, str]] = {"val_per_token_loss": "val_loss"}
    drops = (
        rf"{COSTS}|\A(?:val_)?(?:num_|fwd_bwd|image_to_text|per_example_loss|tflop|pixel_)"
        r"|\Aglobal_batch"
    )

    def record_of(
        self, match: "re.Match[str]", line: str
    ) -> tuple[int | None, list[tuple[str, float]]] | None:
        step, pairs = super().record_of(match, line) or (None, [])
        if match["step"] is None:  # validation: everything is evaluated
            pairs = [(x if x.startswith("val_") else f"val_{x}", value) for x, value in pairs]
        return step, pairs
