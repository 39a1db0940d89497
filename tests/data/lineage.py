"""What a run is made of now, told from its attempts by the slow and plain way."""

from contextlib import suppress

from foreshock.run_view import RunView


def lineage(view: RunView) -> dict[int, list[int]]:
    """Step to positions, in order, without what was undone."""
    found: dict[int, list[int]] = {}
    for attempt in view.attempts():
        start = next(
            one["step"]
            for one in view.records
            if one["kind"] == "attempt_started" and one["attempt"] == attempt
        )
        found = {step: positions for step, positions in found.items() if step <= start}
        with suppress(FileNotFoundError):
            found.update(view.provenance(attempt))
    return dict(sorted(found.items()))
