"""Provenance: which samples went into a step, told from the run directory alone."""

from dataclasses import dataclass

from foreshock.core.errors import JournalError, RunDirError
from foreshock.core.records import MAX_POSITIONS
from foreshock.data.journalled import order_at
from foreshock.journal import RunView


@dataclass(frozen=True)
class Trained:
    """One sample that trained.

    Attributes:
        attempt: attempt in which it did; a step may be trained in several.
        step: optimizer step.
        position: raw stream position.
        stage: stage of the stream.
        source: named source within it.
        index: the sample's index in that source's dataset.
    """

    attempt: int
    step: int
    position: int
    stage: str
    source: str
    index: int


def samples_of(view: RunView, step: int, attempt: int | None = None) -> list[Trained]:
    """The samples of a step, in every attempt that trained it or in one.

    The run records stream positions; names are recomputed from the stream's description
    (seed, stages, sizes), so that the datasets need not be at hand.

    Raises:
        RunDirError: the run had a data loader of its own, so that nothing is known.
        StreamError: the stream's description is damaged, or lacks a recorded position.
        JournalError: an attempt's provenance cannot be read, or claims impossibly much.
    """
    description = view.identity.get("stream")
    if not isinstance(description, dict):
        raise RunDirError(
            f"{view.run_dir}: this run had a data loader of its own; which samples it trained on "
            "is not known"
        )
    found: list[Trained] = []
    for number in view.attempts() if attempt is None else [attempt]:
        try:
            positions = view.provenance(number).get(step, [])
        except FileNotFoundError:
            continue  # an attempt that was cut off before its first step
        except OSError as error:
            raise JournalError(
                f"{view.run_dir}: the data of attempt {number} cannot be read "
                f"({error.strerror or error})"
            ) from error
        if len(found) + len(positions) > MAX_POSITIONS:
            raise JournalError(
                f"{view.run_dir}: step {step} claims over {MAX_POSITIONS} samples in all attempts "
                "together; name one with --attempt"
            )
        order = order_at(description, view.records, number, step)
        found += [Trained(number, step, at, *order.locate(at)) for at in positions]
    return found
