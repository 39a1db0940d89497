"""Not one of the causes that can be told apart here."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Cause


@dataclass(frozen=True, kw_only=True)
class Unknown(Cause):
    """The measure of all others: it stands at log-odds 0 and no evidence moves it.

    A cause that the symptoms do not lift above zero is not named with confidence.
    """

    name: ClassVar[str] = "unknown"
    predicts: ClassVar[str] = "nothing in particular"
    contradicts: ClassVar[str] = "any cause with evidence of its own"
    settled_by: ClassVar[str] = "replay the window exactly, then one change at a time"
    remedies: ClassVar[tuple[str, ...]] = (
        "the experiments that tell most, before anything is changed for good",
        "back to the newest healthy state, step by step further if it returns",
    )
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = 0.0
