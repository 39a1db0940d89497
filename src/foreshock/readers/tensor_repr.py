"""Losses printed as tensors."""

import re
from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader, number, whole


class TensorRepr(TextReader):
    """`loss at batch 40 = tensor(3.21, device='cuda:0', grad_fn=<AddBackward0>)`.

    What stands before the bracket may name a step and the label; `tensor(3.21, grad_fn=...)`
    alone is a loss without a step.
    """

    name: ClassVar[str] = "tensor_repr"
    title: ClassVar[str] = "printed tensors"
    specificity = 0.45
    hint = "ensor("
    record = (
        rf"\A(?P<before>[^{{(]{{0,160}}?)\b(?:torch\.|tf\.)?[Tt]ensor\(\s{{0,4}}\[?\s{{0,4}}(?P<value>{NUMBER})"
        r"(?=[\s\]),])(?P<after>.{0,160})"
    )
    _step = re.compile(
        r"(?i)\b(?:global[_ ]?step|step|iteration|iter|batch|epoch|update)"
        r"\s*[:=#\[]?\s*(\d{1,15})\b"
    )
    _label = re.compile(r"(?i)([a-z][\w/.-]{0,40}[_ ]loss|loss[_/]\w{1,40}|loss|grad[_ ]?norm)\b")

    def record_of(
        self, match: "re.Match[str]", line: str
    ) -> tuple[int | None, list[tuple[str, float]]] | None:
        before, value = match["before"], number(match["value"])
        label = self._label.search(before)
        if value is None or (label is None and "grad_fn=" not in match["after"]):
            return None
        if label is None and before.strip():
            return None
        steps = self._step.findall(before)
        step = whole(steps[-1]) if steps else None
        return step, [(label[1] if label else "loss", value)]
