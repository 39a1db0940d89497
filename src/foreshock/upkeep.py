"""What is done for the data between two steps: requests taken in, what came back judged."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from foreshock.attempts import Attempts
from foreshock.core.errors import StreamError
from foreshock.data.requests import Request, Requests, ids_done
from foreshock.durable import Disk
from foreshock.feed import Feed
from foreshock.journal import Journal
from foreshock.monitor import Monitor
from foreshock.pausing import FromFirst, of_itself

_RANKS_LOOK_EVERY_STEPS: Final = 16
"""Our choice: ranks meet for it, and nobody who typed a command waits for a step."""


class DataUpkeep:
    """Takes in what a person asks of the data, and looks after what was brought back.

    Everything is in the journal before it holds, and depends on nothing but the journal, the
    step and the watermark: a run that was stopped or killed goes on as one that was not, and
    all ranks do the same.

    Args:
        feed: where batches come from.
        attempts: where the run stands.
        monitor: whose alarms samples are blamed for.
        journal: where it is recorded.
        disk: where requests lie.
        num_ranks: processes that share the run.
        is_first: whether this one reads and removes requests.
        from_first: `(what, ask)`; what `ask` returns on the first rank. Collective.
        tell: hears of what was done.
    """

    def __init__(
        self,
        feed: Feed,
        attempts: Attempts,
        monitor: Monitor,
        journal: Journal,
        *,
        disk: Disk,
        num_ranks: int = 1,
        is_first: bool = True,
        from_first: FromFirst = of_itself,
        tell: Callable[[str, Mapping[str, Any]], None] = lambda _kind, _content: None,
    ) -> None:
        self._feed = feed
        self._attempts = attempts
        self._monitor = monitor
        self._journal = journal
        self._requests = Requests(disk, journal.run_dir, ids_done(journal.records))
        self._num_ranks = num_ranks
        self._is_first = is_first
        self._from_first = from_first
        self._tell = tell

    def settle(self) -> None:
        """Journal what came of samples that were brought back, as far as steps are judged.

        Call it after signals were read and before a plan is carried out, since a plan may
        take the run back, and the ledger must know by then what not to give out again.
        """
        stream = self._feed.stream
        if stream is None or not stream.ledger.courses:
            return
        outcomes = stream.ledger.judge(
            self._attempts.progress.recent,
            self._monitor.last_step,
            [alarm.onset_step for alarm in self._monitor.episode],
            position=stream.position,
        )
        for one in outcomes:
            losses = self._feed.loss_of(one.entry_id, one.key, one.slot)
            if losses is not None and self._num_ranks == 1:  # else records of ranks would differ
                one = dataclasses.replace(one, loss=losses[0], batch_median=losses[1])  # noqa: PLW2901
            self._write("reflowed", one.to_json())

    def take_in(self) -> None:
        """Carry out the requests that lie in the run directory. Collective on several ranks."""
        stream = self._feed.stream
        step = self._attempts.progress.step
        if stream is None or (self._num_ranks > 1 and step % _RANKS_LOOK_EVERY_STEPS):
            return
        for line in self._from_first("requests", self._look):
            request = Request.decode(line.encode())
            try:
                told = request.records(stream.ledger, stream.order, stream.position)
            except StreamError as error:
                reason = {"request": request.request, "reason": str(error)}
                told = [("request_refused", reason)]
            for kind, fields in told:
                self._write(kind, fields)
            if self._is_first:
                self._requests.finish(request)

    def _look(self) -> list[str]:
        found, refused = self._requests.pending()
        for name, reason in refused:
            self._journal.warn(f"requests/{name} is not taken in: {reason}")
        return [request.encode().decode() for request in found]

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        progress = self._attempts.progress
        record = self._journal.write(kind, attempt=progress.attempt, step=progress.step, **fields)
        self._feed.stream.apply(record)
        self._tell(kind, record)
