"""One detector on the series that it watches, with its state."""

from collections.abc import Sequence
from typing import Any, final

from foreshock.core.detector import Alarm, Detector, Threshold, state_from_tree, state_to_tree
from foreshock.core.names import GLOBAL, split_series


@final
class Lookout:
    """One detector on the series it watches."""

    def __init__(
        self,
        detector: Detector,
        names: list[str],
        columns: list[int],
        after_update: bool,
        interval_steps: int,
    ) -> None:
        self.after_update = after_update
        self.interval_steps = interval_steps
        self.advisory = detector.advisory
        self.names = names
        self.columns = columns
        every = f"/{interval_steps}" if interval_steps > 1 else ""
        self.key = f"{detector.name}{'+update' if after_update else ''}{every}"
        self._detector = detector
        self._state = detector.init(names)

    @classmethod
    def make(
        cls,
        detector: Detector,
        places: Sequence[tuple[int, str]],
        after_update: bool,
        interval_steps: int,
    ) -> "Lookout | None":
        chosen = [
            (place, name)
            for place, name in places
            if split_series(name)[0] in detector.watches
            and (detector.every_scope or split_series(name)[1] == GLOBAL)
        ]
        if not chosen:
            return None
        columns, names = [place for place, _ in chosen], [name for _, name in chosen]
        return cls(detector, names, columns, after_update, interval_steps)

    def update(self, step: int, row: list[float]) -> list[Alarm]:
        """Take in one step of all series, of which it watches some."""
        mine = [row[place] for place in self.columns]
        self._state, alarms = self._detector.update_step(self._state, step, mine)
        return alarms

    def resumed(self) -> None:
        self._state = self._detector.resumed(self._state)

    def thresholds(self) -> list[Threshold]:
        return self._detector.thresholds(self._state)

    def to_tree(self) -> dict[str, Any]:
        return {
            "rule": repr(self._detector),
            "series": self.names,
            "state": state_to_tree(self._state),
        }

    def load_tree(self, tree: Any) -> None:
        self._state = self._detector.init(self.names)
        if tree is None or tree.get("rule") != repr(self._detector):
            return
        if list(tree["series"]) == self.names:
            self._state = state_from_tree(self._state, tree["state"])
