"""What all ranks must have alike, compared at every decision; and what a failure leaves behind."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from foreshock.attempts import Attempts
from foreshock.core.errors import ForeshockError, Halted, Stopped
from foreshock.durable import Disk
from foreshock.journal import Journal
from foreshock.monitor import Monitor
from foreshock.ranks.agreement import RankError, Ranks
from foreshock.snapshots.codec import digest

DECISIONS: Final = frozenset(
    {
        "attempt_started",
        "episode_probed",
        "incident_closed",
        "plan",
        "run_finished",
        "run_halted",
        "run_stopped",
        "verification",
    }
)
"""Kinds of records before which all ranks meet: nothing of it happens before they agree."""


class Unison:
    """Compares the ranks at every decision, and says in the journal why a run stopped.

    Every rank decides for itself: signals are joined over ranks, so that all judge the same
    values by the same rules, and nothing is sent but digests. A record is compared before it
    is written, so the plan of a rank that is alone with it is neither kept nor carried out.

    Args:
        ranks: all of them.
        journal: the first rank's, or what follows it.
        attempts: where the run stands.
        monitor: what watches.
        stream: whose watermark and ledger are compared; None for a foreign loader.
        disk: on which the first rank writes.
        clock: seconds, for the journal.
    """

    def __init__(
        self,
        ranks: Ranks,
        journal: Journal,
        attempts: Attempts,
        *,
        monitor: Monitor,
        stream: Any,
        disk: Disk,
        clock: Callable[[], float],
    ) -> None:
        self._ranks = ranks
        self._journal = journal
        self._attempts = attempts
        self._monitor = monitor
        self._stream = stream
        self._disk = disk
        self._clock = clock
        self._is_recorded = False
        if ranks.size > 1:
            journal.confirm = self._confirm
            journal.share = self._share

    def check(self, what: str, **more: str) -> None:
        """Stop the run on every rank unless all stand at the same place in the same state.

        Raises:
            RankError: they differ, or one did not come.
        """
        if self._ranks.size > 1:
            self._ranks.agree(f"{what} of step {self._attempts.progress.step}", self._facts(more))

    def part(self) -> None:
        """Wait for the others at the very end: who leaves first would look as if it had died."""
        if self._ranks.size > 1:
            with suppress(RankError):  # all is written: there is nothing left to lose
                self._ranks.exchange("the end", b"")
            self._ranks.failure = None
        self._ranks.close()

    def ended(self, what: str, error: BaseException | None) -> None:
        """Something has ended, by an error or not: tell the others, and find out whose it was.

        A failure of the ranks comes out even where somebody took it for a damaged snapshot.

        Raises:
            RankError: a collective failed, because of other ranks.
        """
        lost = self._ranks.failure
        if self._ranks.size == 1 or (lost is None and error is None):
            return
        if lost is None and isinstance(error, StopIteration | Halted | Stopped):
            return
        if lost is None and error is not None:
            lost = self._ranks.explain(what, error)
        if lost is not None and not self._is_recorded:
            self._is_recorded = True
            self._record(lost)
        stopping = error if lost is None else lost
        assert stopping is not None
        self._ranks.give_up(stopping)
        if lost is not None and lost is not error:
            raise lost from error

    def _facts(self, more: Mapping[str, str]) -> dict[str, str]:
        progress = self._attempts.progress
        facts = {
            "step and attempt": f"{progress.step}, {progress.attempt}",
            "what was decided": self._journal.decided.digest,
            "the monitor's state": digest(self._monitor.to_tree()),
            **more,
        }
        if held := self._attempts.state.in_memory():
            facts["the state in memory"] = f"{held[-1].id} {held[-1].digest}"
        if self._stream is not None:
            ledger = json.dumps(self._stream.ledger.to_json(), sort_keys=True)
            facts["the stream's position"] = str(self._stream.position)
            facts["the quarantine"] = blake2b(ledger.encode(), digest_size=16).hexdigest()
        return facts

    def _confirm(self, record: dict[str, Any]) -> None:
        if record["kind"] in DECISIONS:
            told = {key: value for key, value in record.items() if key != "time"}
            text = json.dumps(told, sort_keys=True)
            self.check(record["kind"], record=blake2b(text.encode(), digest_size=16).hexdigest())

    def _share(self, backlog: int) -> int:
        return self._ranks.from_first("decisions that wait for the disk", lambda: backlog)

    def _record(self, error: RankError) -> None:
        """Journal why the run stops: the first rank, or the first that is left."""
        journal = self._journal
        journal.confirm = journal.share = None
        left = sorted(set(range(self._ranks.size)) - set(error.ranks))
        first_is_gone = error.kind == "ranks_lost" and 0 in error.ranks
        if not first_is_gone:
            self._write(journal, error)
        elif left and left[0] == self._ranks.rank:
            # Its lock is free if it died; if it hangs, it holds it, and nothing is written.
            with suppress(ForeshockError, OSError):
                taken = Journal.open(self._disk, Path(journal.run_dir), None, self._clock)
                with taken:
                    self._write(taken, error)

    def _write(self, journal: Journal, error: RankError) -> None:
        progress = self._attempts.progress
        ranks, why = list(error.ranks), str(error)
        journal.write(
            error.kind, attempt=progress.attempt, step=progress.step, ranks=ranks, why=why
        )


class Together:
    """`with Together(unison, what):` what is raised inside is told to the other ranks."""

    def __init__(self, unison: Unison, what: Callable[[], str]) -> None:
        self._unison = unison
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        self._unison.ended(self._what(), error)
