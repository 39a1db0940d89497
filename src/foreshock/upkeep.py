"""What is done for the data between two steps: requests taken in, what came back judged."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from foreshock.attempts import Attempts
from foreshock.core.errors import StreamError
from foreshock.core.reading import from_json_number, json_number
from foreshock.data.reflow import Outcome
from foreshock.data.requests import Requests, decode, ids_done
from foreshock.durable import Disk
from foreshock.feed import Feed
from foreshock.journal import Journal
from foreshock.monitor import Monitor
from foreshock.pausing import FromFirst, of_itself

_LOOK_EVERY_SECS: Final = 1.0
"""Our choice: nobody who typed a command waits for a step, and no disk feels it."""

_RANKS_LOOK_EVERY_STEPS: Final = 16
"""Our choice: ranks meet for it, and have no clock in common."""

Exchange = Callable[[str, bytes], list[bytes]]
"""`(what, said)`; what each rank says, as `Ranks.exchange`. Collective."""


class DataUpkeep:
    """Takes in what a person asks of the data, and looks after what was brought back.

    Everything is in the journal before it holds, and depends on nothing but the journal, the
    step and the watermark: a run that was stopped or killed goes on as one that was not, and
    all ranks do the same. When a request is found is the clock's affair, on one rank; at which
    step it was taken in is in the journal.

    Args:
        feed: where batches come from.
        attempts: where the run stands.
        monitor: whose alarms samples are blamed for.
        journal: where it is recorded.
        disk: where requests lie.
        num_ranks: processes that share the run.
        is_first: whether this one reads and removes requests.
        from_first: `(what, ask)`; what `ask` returns on the first rank. Collective.
        exchange: by which ranks tell each other the losses of samples that came back, which
            only the one knows that trained them; None leaves them out on several ranks.
        clock: seconds, for how often requests are looked for on one rank.
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
        exchange: Exchange | None = None,
        clock: Callable[[], float] = time.monotonic,
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
        self._exchange = exchange
        self._clock = clock
        self._looked: float | None = None
        self._tell = tell

    def settle(self) -> None:
        """Journal what came of samples that were brought back, as far as steps are judged.

        Collective on several ranks where there is anything to tell, which is alike on all.
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
        outcomes = self._with_losses(outcomes)
        for one in outcomes:
            self._write("reflowed", one.to_json(), durable=one is outcomes[-1])

    def take_in(self) -> None:
        """Carry out the requests that lie in the run directory. Collective on several ranks."""
        stream = self._feed.stream
        if stream is None or not self._is_time():
            return
        for line in self._from_first("requests", self._look):
            request = decode(line.encode())
            if request.must_wait(self._journal.records):
                continue
            try:
                told = request.records(
                    stream.ledger, stream.order, stream.position, self._journal.records
                )
            except StreamError as error:
                reason = {"request": request.request, "reason": str(error)}
                told = [("request_refused", reason)]
            for kind, fields in told:
                self._write(kind, fields)
            if self._is_first:
                self._requests.finish(request)

    def _is_time(self) -> bool:
        """Whether requests are looked for at this step."""
        first, now = self._looked is None, self._clock()
        if self._num_ranks > 1:
            due = first or self._attempts.progress.step % _RANKS_LOOK_EVERY_STEPS == 0
        else:
            due = first or not 0 <= now - (self._looked or 0.0) < _LOOK_EVERY_SECS
        if due:
            self._looked = now
        return due

    def _with_losses(self, outcomes: list[Outcome]) -> list[Outcome]:
        """The outcomes with what the samples lost, as the rank knows it that trained them."""
        if not outcomes or (self._num_ranks > 1 and self._exchange is None):
            return outcomes
        known = [self._feed.loss_of(one.entry_id, one.key, one.slot) for one in outcomes]
        if self._exchange is not None:
            said = json.dumps([one and [json_number(loss) for loss in one] for one in known])
            rows = [json.loads(row) for row in self._exchange("losses", said.encode())]
            told = [next(filter(None, column), None) for column in zip(*rows, strict=True)]
            known = [one and tuple(map(from_json_number, one)) for one in told]
        return [
            one
            if losses is None
            else dataclasses.replace(one, loss=losses[0], batch_median=losses[1])
            for one, losses in zip(outcomes, known, strict=True)
        ]

    def _look(self) -> list[str]:
        found, refused = self._requests.pending()
        for name, reason in refused:
            self._journal.warn(f"requests/{name} is not taken in: {reason}")
        return [request.encode().decode() for request in found]

    def _write(self, kind: str, fields: Mapping[str, Any], *, durable: bool = True) -> None:
        progress = self._attempts.progress
        record = self._journal.write(
            kind, attempt=progress.attempt, step=progress.step, durable=durable, **fields
        )
        self._feed.stream.apply(record)
        self._tell(kind, record)
