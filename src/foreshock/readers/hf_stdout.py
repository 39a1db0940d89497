"""Dict rows that Hugging Face's Trainer and its descendants print."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import ClassVar

from foreshock.core.bar_steps import BarSteps
from foreshock.core.dict_rows import DICT, DictRow, dict_rows, numbers_of_row, row_of
from foreshock.core.even_steps import even_steps
from foreshock.core.line_shape import Arrangement, Columns, Steps
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.reader import Sample, Source
from foreshock.core.spans import Span, Spans
from foreshock.core.text_reader import Says, TextReader, whole

_BAR = re.compile(r"%\|[^|\n]{0,600}\|\s{0,4}(\d{1,12})/(\d{1,12}) \[")
_LOGGER = re.compile(r"(?:>>|- [A-Z]{4,8} - [\w.]{1,80} -)\s{0,8}\Z")
_TOTAL = re.compile(r"Total optimization steps = ([\d,]{1,20})")
_MAX_WRAPPED = 64
_MAX_STEPLESS = 100_000


class HFStdout(TextReader):
    """`{'loss': 1.91, 'grad_norm': 2.4, 'learning_rate': 1e-05, 'epoch': 0.1}`.

    Newer versions print values as strings. Rows seldom name their step: it stands in the
    progress bars between them, unless output was buffered: then it follows from the epochs, if
    the run is over. The last row holds averages of the run. A loss that is NaN is printed as
    0.0 by default (`logging_nan_inf_filter`).
    """

    name: ClassVar[str] = "hf_stdout"
    title: ClassVar[str] = "HF Trainer stdout (TRL, axolotl, ms-swift, LLaVA, …)"
    specificity = 0.85
    record = DICT
    drops = (
        rf"{COSTS}|_runtime\Z|_per_second\Z|\A(?:num_)?(?:input_)?tokens|\Apercentage\Z"
        r"|\A(?:global_)?step\Z|\Aiteration\Z|\Atotal_flos\Z|tokens_seen"
    )
    events = (
        Says(
            EventKind.RESUMED,
            r"Continuing training from (?:global step|checkpoint)",
            hint="Continuing training from",
        ),
    )

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        num_single = num_double = 0
        for line in sample.lines:
            if "{" in line and "loss" in line:
                for row in dict_rows(line):
                    num_single += not row.is_json
                    num_double += row.is_json
            if num_single >= 3:
                return self.specificity
        if num_single:
            return 0.97 * self.specificity
        is_json = sample.text.lstrip()[:1] in ("{", "[")
        return 0.4 if num_double and not is_json else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        steps = BarSteps()
        rows = _Rows(log)
        plain = Spans(
            log,
            self._numbers,
            rows.arranged,
            lambda record, number_: self._row(row_of(record[1]), "", number_, steps, rows),
        )
        for first, text in source.texts():
            number_, at = first, 0
            while at < len(text):
                if steps.is_out and not rows.wrapped and rows.are_plain and text[at] == "{":
                    count, at = plain.keep(text, at, number_)
                    number_ += count
                    log.num_lines = number_ - 1
                    if count:
                        continue
                close = text.index("\n", at)
                log.num_lines = number_
                self._line(text[at:close], number_, plain, steps, rows)
                number_ += 1
                at = close + 1
        if rows.wrapped:
            self._rows_of("".join(rows.wrapped), rows.first, steps, rows)
        rows.give_held()
        steps.end()
        log.total_steps = log.total_steps or steps.longest

    def _line(self, line: str, number_: int, plain: Spans, steps: BarSteps, rows: "_Rows") -> None:
        wrapped = rows.wrapped
        if wrapped:
            wrapped.append(line.strip())
            if "}" not in line and "{" not in line and len(wrapped) < _MAX_WRAPPED:
                return
            if "{" in line:
                wrapped.pop()
            self._rows_of("".join(wrapped), rows.first, steps, rows)
            wrapped.clear()
            if "{" not in line:
                return
        if "{" in line and ("'" in line or '"' in line):
            if line[0] == "{" and (pairs := plain.read(line)) is not None:
                self._row(row_of(pairs), "", number_, steps, rows)
                return
            last = line.rfind("{")
            if "}" not in line[last:] and line[last + 1 : last + 2] in ("'", '"'):
                wrapped.append(line.rstrip())
                rows.first = number_
                return
            self._rows_of(line, number_, steps, rows)
            return
        self._other(line, number_, steps, rows)

    def _other(self, line: str, number_: int, steps: BarSteps, rows: "_Rows") -> None:
        """Take in a line without rows: a bar, or words."""
        if "%|" in line:
            self._bars(line, steps, rows)
        if "*** Running training ***" in line:
            rows.give_held()
            steps.end()
            rows.ended = rows.log.num_rows > 0
        elif "Total optimization steps" in line and (found := _TOTAL.search(line)):
            rows.log.total_steps = whole(found[1])
        elif any(says.hint in line for says in self._all_events):
            steps.aside(partial(self._word, line, number_, rows.log, rows))

    def _numbers(self, line: str) -> list[Span] | None:
        spans = numbers_of_row(line)
        return spans and [span for span in spans if self._kept_label(span[0])]

    def _rows_of(self, line: str, number_: int, steps: BarSteps, rows: "_Rows") -> None:
        """Take in a line with rows on it, and bars between them."""
        place = 0
        for row in dict_rows(line):
            if "%|" in line[place : row.start]:
                self._bars(line[place : row.start], steps, rows)
            place = row.end
            if row.kind == "summary":
                rows.give_held()
                steps.end()
                rows.summary(row, steps.longest)
                continue
            row.pairs = [
                (kept, value)
                for label, value in row.pairs
                if (kept := self._kept_label(label)) and (label, row.kind) != ("epoch", "eval")
            ]
            rows.log.total_steps = rows.log.total_steps or row.total_steps
            self._row(row, line[: row.start], number_, steps, rows)
        if "%|" in line[place:]:
            self._bars(line[place:], steps, rows)
        if any(says.hint in line[place:] for says in self._all_events):
            steps.aside(partial(self._word, line[place:], number_, rows.log, rows))

    def _row(self, row: DictRow, before: str, number_: int, steps: BarSteps, rows: "_Rows") -> None:
        """Queue a row; `before` is what stands before it on its line."""
        queue = partial(self._queue, row, before, number_, steps, rows)
        if not rows.is_echo(row, before, queue):
            queue()

    def _queue(
        self, row: DictRow, before: str, number_: int, steps: BarSteps, rows: "_Rows"
    ) -> None:
        rank = self._rank(None, before) if before else None
        give = partial(rows.give, row, number_, rank)
        if row.kind == "train" and row.step is None and rows.speaks(rank):
            steps.row(give)
        else:
            steps.aside(give)

    def _bars(self, text: str, steps: BarSteps, rows: "_Rows") -> None:
        rows.give_held()
        place = 0
        for bar in _BAR.finditer(text):
            name = text[max(place, bar.start() - 60) : bar.start()].rstrip("0123456789").strip()
            place = bar.end()
            if not name or name in ("Train:", "Training:"):
                steps.bar(int(bar[1]), int(bar[2]))

    def _word(
        self, line: str, number_: int, log: LogBuilder, rows: "_Rows", step: int | None
    ) -> None:
        del step
        if "Continuing training from" in line:
            rows.ended = False
        self.word(line, number_, log)


class _Rows:
    """Gives rows to the log, and tells where another run begins."""

    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.ended = False
        self._epoch = self._first_epoch = -1.0
        self._echoes: bool | None = None
        self._held: tuple[Callable[[], None], list[tuple[str, float]]] | None = None
        self._first_rank: int | None = None
        self._stepless: list[tuple[int, float]] = []
        self.wrapped: list[str] = []
        """What was read of a row that a terminal wrapped."""
        self.first = 0
        """The first line of it."""

    @property
    def are_plain(self) -> bool:
        """Whether rows without a logger speak, and none is held back."""
        return self._echoes is True and self._held is None

    def arranged(self, labels: Sequence[str]) -> Arrangement | None:
        """How rows without steps that stand below one another are given at once."""
        if "epoch" not in labels:
            return None
        place = labels.index("epoch")

        def check(numbers: Columns, start: int) -> int:
            epochs = numbers[place]
            if self.ended or self._first_epoch < 0:
                return start
            end, last, begins = start, self._epoch, 2 * self._first_epoch + 0.01
            for epoch in islice(epochs, start, None):
                if epoch < last and epoch <= begins:
                    break
                last = epoch
                end += 1
            self._epoch = last
            return end

        def rows(numbers: Columns) -> tuple[Steps, Columns]:
            room = max(_MAX_STEPLESS - len(self._stepless), 0)
            self._stepless += islice(enumerate(numbers[place], self.log.num_rows), room)
            return [None] * len(numbers[place]), numbers

        return Arrangement(labels, rows, check)

    def summary(self, row: DictRow, bar_total: int | None) -> None:
        """The last row of a run: averages and sums, no step's values."""
        for label, value in row.pairs:
            if label.startswith("train_"):
                self.log.facts[label] = f"{value:g}"
        self.ended = True
        end, total = dict(row.pairs).get("epoch"), self.log.total_steps or bar_total
        if end and total and 0 < len(self._stepless) < _MAX_STEPLESS:
            steps = even_steps([epoch for _, epoch in self._stepless], total, end)
            if steps is not None:
                self.log.name_steps([place for place, _ in self._stepless], steps)
        self._stepless.clear()

    def speaks(self, rank: int | None) -> bool:
        """Whether a rank is the one that speaks for all."""
        self._first_rank = rank if self._first_rank is None else self._first_rank
        return rank is None or rank == self._first_rank

    def is_echo(self, row: DictRow, before: str, queue: Callable[[], None]) -> bool:
        """Whether a row repeats what is printed besides, by way of a logger (`>> {...}`).

        The first row that a logger prints is held back (`queue` gives it, later): if the same
        row follows without a logger, that one says more.
        """
        logged = _LOGGER.search(before) is not None
        held, pairs = self._held or (None, [])
        self._held = None
        if held is not None and not logged and _agree(pairs, row.pairs):
            self._echoes = True
            return False
        if held is not None:
            held()
        if self._echoes is None:
            self._echoes = not logged
            if logged:
                self._held = (queue, row.pairs)
            return logged
        return logged == self._echoes

    def give_held(self) -> None:
        """Give the row that is held back: nothing repeats it."""
        held, self._held = self._held, None
        if held is not None:
            held[0]()

    def give(self, row: DictRow, line: int, rank: int | None, step: int | None) -> None:
        """Give a row to the log, at the step that it tells, or that bars tell of it."""
        if row.step is not None:
            step = row.step
        if row.kind == "train" and self.speaks(rank):
            epoch = next((value for label, value in row.pairs if label == "epoch"), self._epoch)
            again = step is None and epoch < self._epoch
            if self.ended or (again and epoch <= 2 * self._first_epoch + 0.01):
                self.log.new_run()
                self._first_epoch = epoch
            if self._first_epoch < 0:
                self._first_epoch = epoch
            self.ended, self._epoch = False, epoch
            if step is None and len(self._stepless) < _MAX_STEPLESS:
                self._stepless.append((self.log.num_rows, epoch))
        self.log.row(step, row.pairs, line=line, rank=rank)


def _agree(one: list[tuple[str, float]], two: list[tuple[str, float]]) -> bool:
    """Whether two rows are the same but for rounding, in what both tell."""
    others = dict(two)
    shared = [(value, others[label]) for label, value in one if label in others]
    return bool(shared) and all(
        math.isclose(a, b, rel_tol=0.01, abs_tol=0.006) or (a != a and b != b)  # noqa: PLR0124
        for a, b in shared
    )
