"""What was done about the trouble, and did not help."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from foreshock.core.case import Case
from foreshock.core.ladder import RUNGS
from foreshock.core.symptom import Look, Symptom

_ASKED: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "skipping_did_not_help": ("skipping updates", ("skip_update",)),
        "rollback_did_not_help": ("going back", ("rollback",)),
        "setting_data_aside_did_not_help": ("setting data aside", ("quarantine",)),
        "fresh_moments_did_not_help": ("fresh moments", ("reset_moments",)),
        "lower_rate_did_not_help": ("a lower rate", ("scale_lr", "cap_lr")),
    }
)
"""By symptom: its remedy in words, and the actions that are it."""


@dataclass(frozen=True, kw_only=True)
class Tried(Look):
    """Remedies of this episode, and of up to `reach_steps` before it, that did not help.

    A rung is all of its actions: one that failed speaks against each of them. One that helped
    did so by what had not failed before, or by all of it if everything had. The last word on a
    remedy counts: it came back (degree 1), or it stayed away (0). What was not tried, or is not
    known yet, is not told of.

    Usual: of episodes in which it was tried and is asked about. A remedy that helped ends its
    incident, so that mostly those are met that did not: of the causes a skipped update answers
    the batch alone (65 % do not), a rollback whatever lies in the state or by chance (50 %), data
    set aside the data (60 %), fresh moments the optimizer's state (65 %), a lower rate several
    (50 %).

    Args:
        reach_steps: our choice, because rates that were lowered hold for up to 1,000 steps.
    """

    name: ClassVar[str] = "tried"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "skipping_did_not_help": 0.65,
            "rollback_did_not_help": 0.50,
            "setting_data_aside_did_not_help": 0.60,
            "fresh_moments_did_not_help": 0.65,
            "lower_rate_did_not_help": 0.50,
        }
    )
    reach_steps: int = 1000

    def look(self, case: Case) -> Iterator[Symptom]:
        verdicts: dict[str, tuple[bool, str]] = {}
        for name, helped, when in self._told(case):
            actions = _actions_of(name)
            if helped:
                new = [one for one in actions if verdicts.get(one, (True, ""))[0]]
                actions = new or actions
            verdicts.update(dict.fromkeys(actions, (helped, f"{name}{when}")))
        for symptom, (remedy, actions) in _ASKED.items():
            known = [verdicts[one] for one in actions if one in verdicts]
            if not known:
                continue
            failed = [said for helped, said in known if not helped]
            if failed:
                statement = f"{remedy} did not help: {failed[-1]}"
            else:
                statement = f"{remedy} helped: {known[-1][1]}"
            yield Symptom(name=symptom, degree=len(failed) / len(known), statement=statement)

    def _told(self, case: Case) -> Iterator[tuple[str, bool, str]]:
        """Name, whether it helped, and when; in order."""
        first = case.onset_step - self.reach_steps
        for one in case.interventions:
            if one.helped is not None and one.step >= first:
                yield one.action, one.helped, f" after step {one.step}"
        for name in case.tried:
            yield name, False, " in this incident"


def _actions_of(name: str) -> tuple[str, ...]:
    """The actions of a rung; of an action, itself."""
    return RUNGS[name].names if name in RUNGS else (name,)
