"""Whether it began after a restart, and what that had changed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from foreshock.core.case import Case, Change
from foreshock.core.looking import graded
from foreshock.core.symptom import Look, Symptom

_KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "configuration_changed": ("the configuration", ("configuration",)),
        "packages_changed": ("packages", ("package",)),
        "environment_changed": ("environment or hardware", ("environment", "hardware")),
        "code_changed": ("the code", ("code",)),
        "data_changed": ("the data", ("data",)),
        "world_changed": ("the number of ranks", ("world",)),
    }
)
"""By symptom: what, in words, and the kinds of `Change` that it asks for."""
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Restart(Look):
    """Starts of the process before the onset, and what was not as at the start before.

    `after_start`: the onset lies within `at_once_steps` of a start that is not the first; the later
    it is, up to twice `near_steps`, the less that says. The
    others: something of that kind changed at a start before the onset, the less the longer ago.
    Nothing is told where starts are not known, as of a printed log.

    Usual: lost moments, lost schedules, lost samplers, another configuration and another
    environment are five or six of some thirty causes, and long runs restart now and then
    anyway (20 %). Of what differs then the code and the environment (of each, names of nodes,
    ids of jobs) are the most common, the data and the packages the least.

    Args:
        at_once_steps: lost moments show within 6 steps (experiments); a clear yes.
        near_steps: our choice, because lost moments show within 6 steps, a lost schedule within
            60 and a lost data order as long as it lasts (experiments); twice as many are a
            clear no.
        far_steps: after so many steps a change counts for nothing; our choice, because GLM-130B
            broke 100 steps after a change of its data mix.
    """

    name: ClassVar[str] = "restart"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "after_start": 0.20,
            "configuration_changed": 0.08,
            "packages_changed": 0.04,
            "environment_changed": 0.08,
            "code_changed": 0.08,
            "data_changed": 0.05,
            "world_changed": 0.05,
        }
    )
    at_once_steps: int = 6
    near_steps: int = 50
    far_steps: int = 500

    def look(self, case: Case) -> Iterator[Symptom]:
        if not case.starts:
            return
        later = [step for step in case.starts[1:] if step < case.onset_step]
        if later:
            since = case.onset_step - later[-1]
            said = f"the onset is step {since} after the start at step {later[-1]}"
            degree = graded(since, 2 * self.near_steps, self.at_once_steps)
        else:
            said, degree = "the process had not been started anew before the onset", 0.0
        yield Symptom(name="after_start", degree=degree, statement=said)
        for symptom, (what, kinds) in _KINDS.items():
            yield self._changed(case, symptom, what, kinds)

    def _changed(self, case: Case, symptom: str, what: str, kinds: tuple[str, ...]) -> Symptom:
        mine = [one for one in case.changes if one.kind in kinds and one.step < case.onset_step]
        if not mine:
            said = f"{what}: as at the start before"
            return Symptom(name=symptom, degree=0.0, statement=said)
        last = max(one.step for one in mine)
        latest = [one for one in mine if one.step == last]
        since = case.onset_step - last
        said = "; ".join(_said(one) for one in latest[:_NAMED])
        more = f" and {len(latest) - _NAMED} more" if len(latest) > _NAMED else ""
        return Symptom(
            name=symptom,
            degree=graded(since, self.far_steps, self.near_steps),
            statement=f"{what} changed {since} steps before the onset: {said}{more}",
        )


def _said(change: Change) -> str:
    return f"{change.name} from {change.before:.80} to {change.after:.80}"
