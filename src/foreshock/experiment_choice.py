"""Which experiment comes next: what is expected to tell most for its steps."""

from collections.abc import Sequence
from typing import Final

from foreshock.core.cause import Diagnosis
from foreshock.core.experiment import Experiment, Result, Tables, information

LEAST_NATS: Final = 0.02
"""What the next experiment must be expected to tell to be worth its steps. Our choice: less
cannot move a cause of 90 % by more than a few per cent."""
CONTROL: Final = "earlier_state"
"""PaLM's control, which comes before anyone blames data."""

_BLAMED: Final = 0.1
_NOT_AGAIN: Final = ("replay", "stays_away")
_CHANCE: Final = "twice"
_ALIKE: Final = (
    frozenset({"earlier_state", "clean_control"}),
    frozenset({"replay", "other_batch", "left_out", "reseeded", "bisection"}),
    frozenset({"fp32_forward", "fp64_attention", "fp64_loss"}),
    frozenset({"fresh_moments", "repaired_moments", "inspection"}),
    frozenset({"other_split", "eager", "twice"}),
)
"""Experiments whose answers follow in part from each other's."""
_WORTH_OF_ALIKE: Final = 0.5


def next_of(
    left: Sequence[Experiment], results: Sequence[Result], now: Diagnosis, tables: Tables
) -> Experiment | None:
    """What to make next; None if nothing is worth it.

    PaLM's control comes before anyone blames data; and where a replay had no trouble, whether a
    step gives the same bits twice comes before anyone blames the state.

    Args:
        left: what can be made.
        results: of those that were made.
        now: the diagnosis with them.
        tables: of the causes.
    """
    control = [one for one in left if one.name == CONTROL]
    if control and now.data_suspicion >= _BLAMED:
        return control[0]
    once = any((told.experiment, told.outcome) == _NOT_AGAIN for told in results)
    if once and (chance := [one for one in left if one.name == _CHANCE]):
        return chance[0]
    worth = {one.name: expected_nats(one, results, now, tables) for one in left}
    telling = [one for one in left if worth[one.name] >= LEAST_NATS]
    return max(telling, key=lambda one: worth[one.name] / one.windows) if telling else None


def expected_nats(
    one: Experiment, results: Sequence[Result], now: Diagnosis, tables: Tables
) -> float:
    """What an experiment is expected to tell; half of it for each one like it that was made."""
    like = sum({one.name, told.experiment} <= alike for told in results for alike in _ALIKE)
    shares = {candidate.cause: candidate.probability for candidate in now.candidates}
    return information(shares, one.name, tuple(one.outcomes), tables) * _WORTH_OF_ALIKE**like
