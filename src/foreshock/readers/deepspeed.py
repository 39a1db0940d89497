"""What the DeepSpeed engine prints, and the steps of DeepSpeed-Chat."""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import ClassVar

from foreshock.core.epoch_steps import count_of
from foreshock.core.line_shape import Arrangement, Columns, Record, Steps
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.reader import Sample
from foreshock.core.text_reader import NUMBER, TextReader, number, whole

_OVERFLOW = re.compile(
    r"(?:OVERFLOW|overflow)!(?: Rank (?P<rank>\d{1,6}))? Skipping step\."
    rf"(?: Attempted loss scale: (?P<attempted>{NUMBER})"
    rf"(?:, reducing to (?P<reduced>{NUMBER})|, but hysteresis is (?P<hysteresis>\d{{1,6}}))?)?"
)
_EVALUATED = re.compile(
    rf"\Appl: (?P<eval_ppl>{NUMBER})(?:, loss: (?P<eval_loss>{NUMBER}))?"
    rf"|\A[Aa]verage reward score: (?P<reward>{NUMBER})"
    rf"|\Achosen_last_scores \(higher is better\) : (?P<eval_chosen_score>{NUMBER})"
    rf".{{0,200}}?acc \(higher is better\) : (?P<eval_accuracy>{NUMBER})"
    rf"|\Achosen: (?P<eval_chosen_reward>{NUMBER}), rejected: (?P<eval_rejected_reward>{NUMBER})"
    rf", loss: (?P<eval_dpo_loss>{NUMBER})"
)
_HINTS = ("ppl: ", "verage rew", "chosen")
_MAX_TRACKS = 4


class Deepspeed(TextReader):
    """`[logging.py:96:log_dist] [Rank 0] step=20, skipped=4, lr=[1e-05], mom=[(0.9, 0.95)]`.

    The engine prints no loss; DeepSpeed-Chat adds `epoch: 0|step: 3|ppo_ep: 1|act_loss: 0.2|…`
    and a perplexity an epoch. The loss scale is told by the OVERFLOW lines alone. Two engines
    (actor and critic) print the same lines: their scales are kept apart by continuity, as
    `loss_scale` and `loss_scale_2`.
    """

    name: ClassVar[str] = "deepspeed"
    title: ClassVar[str] = "DeepSpeed / DeepSpeed-Chat"
    specificity = 0.82
    hint = "tep"
    record = (
        r"(?:\[Rank (?P<rank>\d{1,6})\] step=(?P<engine_step>\d+), skipped=(?P<skipped>\d+)"
        r"(?:, lr=\[(?P<lr>[-+.\deE]+))?"
        rf"|\bsteps: (?P<pipe_step>\d+) loss: (?P<loss>{NUMBER}) iter time"
        r"|[Ee]poch: ?(?P<epoch>\d+)(?:, | ?\| ?)[Ss]tep: ?(?P<step>\d+)"
        r"(?= ?\| ?(?:ppo_ep|PPO Epoch)|, Rank: \d+, loss = ))"
        r"(?P<rest>(?(step).*|))"
    )
    pairs = rf"([A-Za-z][A-Za-z_ ]{{0,40}}[A-Za-z])(?:: ?| = )({NUMBER})(?=\s*(?:\||,|\Z))"
    labels: ClassVar[Mapping[str, str]] = {
        "act_loss": "actor_loss",
        "Actor Loss": "actor_loss",
        "cri_loss": "critic_loss",
        "Critic Loss": "critic_loss",
        "Unsupervised Loss": "unsuper_loss",
        "ppo_ep": "",
        "PPO Epoch": "",
        "Rank": "",
    }

    _tracks: "_Tracks"
    _is_chat = False
    """Whether the chat's own lines say where the run stands: not the engines' counts then."""
    _engine_step: int | None = None
    _engine = 0

    def recognises(self, sample: Sample) -> float:
        found = super().recognises(sample)
        if not found and any(_OVERFLOW.search(line) for line in sample.lines if "kipping" in line):
            return 0.4  # many trainers run on DeepSpeed: theirs is the format then
        return found

    def begin(self) -> None:
        self._tracks = _Tracks()

    def end(self, log: LogBuilder) -> None:
        if self._tracks.num_tracks > 1:
            log.note("several engines print their overflows: their scales are kept apart")

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        self._tracks.num_others += 1
        step, pairs, rank = record
        label, value = pairs[0]
        if label == "pipe_step":
            step, pairs = count_of(value), pairs[1:]
        elif label == "engine_step":
            step = count_of(value)
            again = step == self._engine_step
            self._engine = self._engine + 1 if again and self._engine < _MAX_TRACKS else 0
            self._engine_step = step
            mark = f"_{self._engine + 1}" if self._engine else ""
            pairs = [(f"{x}{mark}", value) for x, value in pairs[1:]]
            step = None if self._is_chat else step
        else:
            self._is_chat = True
        log.row(step, pairs, line=number_, rank=rank)

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        kind = labels[0]
        if kind not in ("pipe_step", "engine_step") or "" in labels:
            return None

        def check(numbers: Columns, start: int) -> int:
            if kind == "pipe_step":
                return len(numbers[0])
            end = start
            for value in islice(numbers[0], start, None):
                if value == self._engine_step:
                    break
                end, self._engine_step, self._engine = end + 1, count_of(value), 0
            return end

        def rows(numbers: Columns) -> tuple[Steps, Columns]:
            self._tracks.num_others += len(numbers[0])
            is_told = kind == "pipe_step" or not self._is_chat
            return numbers[0] if is_told else [None] * len(numbers[0]), numbers[1:]

        return Arrangement(labels[1:], rows, check)

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if "kipping step." in line and (found := _OVERFLOW.search(line)):
            pairs = self._tracks.pairs(found)
            if pairs is not None:
                for pair in pairs[:-1]:
                    log.row(None, [pair], line=number_)
                log.event(
                    EventKind.OVERFLOW,
                    line=number_,
                    text=line,
                    signal="grad_norm",
                    values=pairs[-1:],
                )
            return
        if line.strip():
            self._tracks.num_others += 1
        if any(hint in line for hint in _HINTS) and (found := _EVALUATED.search(line.strip())):
            log.row(
                None,
                [
                    (label, value)
                    for label, text in found.groupdict().items()
                    if text and (value := number(text)) is not None
                ],
                line=number_,
            )
            return
        super().word(line, number_, log)


class _Tracks:
    """The loss scales of one or several engines, told apart by what each said last."""

    def __init__(self) -> None:
        self._last: list[float] = []
        self._used: list[int] = []
        self._hysteresis: list[int | None] = []
        self._told_at: list[int] = []
        self._clock = 0
        self._first_rank: str | None = None
        self.num_others = 0
        """Lines seen that tell of no overflow."""

    @property
    def num_tracks(self) -> int:
        return len(self._last)

    def pairs(self, found: "re.Match[str]") -> list[tuple[str, float]] | None:
        """The scale before and after, under the label of its track; None for another rank."""
        rank = found["rank"]
        if self._first_rank is None:
            self._first_rank = rank
        elif rank is not None and rank != self._first_rank:
            return None
        attempted = number(found["attempted"] or "")
        if attempted is None:
            return []
        reduced = number(found["reduced"] or "")
        hysteresis = whole(found["hysteresis"]) if found["hysteresis"] else None
        after = attempted if reduced is None else reduced
        track = self._track(attempted, hysteresis)
        self._clock += 1
        self._last[track], self._used[track] = after, self._clock
        self._hysteresis[track], self._told_at[track] = hysteresis, self.num_others
        label = "loss_scale" if track == 0 else f"loss_scale_{track + 1}"
        return [(label, attempted)] if reduced is None else [(label, attempted), (label, reduced)]

    def _track(self, attempted: float, hysteresis: int | None) -> int:
        """The engine that attempted this scale: one that stood there, else one whose scale may
        have grown to it since, else one that has not been heard of."""
        fits = [
            track
            for track, last in enumerate(self._last)
            if last == attempted
            and not (hysteresis is not None and self._hysteresis[track] == hysteresis)
        ]
        if not fits:
            grown = [
                (self._last[track], track)
                for track in range(len(self._last))
                if self._told_at[track] != self.num_others
                and (len(self._last) == 1 or 0 < self._last[track] < attempted)
            ]
            if grown:
                closest = max(grown)[0]
                fits = [track for last, track in grown if last == closest]
        if not fits and len(self._last) < _MAX_TRACKS:
            self._last.append(attempted)
            self._used.append(0)
            self._hysteresis.append(None)
            self._told_at.append(self.num_others)
            return len(self._last) - 1
        return min(fits or range(len(self._last)), key=lambda track: self._used[track])
