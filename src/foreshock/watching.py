"""`watch`: every signal and every alarm of a loop that stays its own; nothing is changed."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from foreshock.attachment import agree, facts_of, join, site_of
from foreshock.core.detector import Alarm
from foreshock.core.errors import ConfigError, LoopError
from foreshock.core.meter import Meter
from foreshock.core.names import LOSS
from foreshock.core.reading import Reading
from foreshock.core.signal import Attached, Level, Moment, Signal
from foreshock.core.sink import Sink
from foreshock.mirroring import Mirroring
from foreshock.norms import Sizes
from foreshock.observation import Observation
from foreshock.ranks.canary import Canary
from foreshock.ranks.exchange import num_ranks
from foreshock.recipes import Recipe, watching
from foreshock.told import Told
from foreshock.update import Update, clip_factor, trained_parameters
from foreshock.watch_record import WatchRecord, mirrors_of

NORMS, DETECTORS, STORAGE, PACKING = "norms", "detectors", "storage", "packing"
"""Names of what is not done by a signal, in a meter: the pass that clipping needs anyway, the
rules, the run directory, and the one buffer."""


class Watch:
    """Observes a model and its optimizer from the outside.

    Hooks on `optimizer.step` measure just before and just after each update, and hooks on
    the model what flows through it; the training is bit-identical with and without. Values
    are read `lag_steps` later, as in the Guard.

    Gradients are taken as they are when `optimizer.step` is called. A loop that clips before
    that shows clipped norms: replace `clip_grad_norm_` by `watched.clip_`, which clips by the
    norms that are measured anyway, so that recording them costs nothing; or call
    `before_clip()` just before clipping, which takes a pass of its own.

    With a `GradScaler`, `scaler.step` hands the scale over where gradients are still scaled
    (fused optimizers); it is divided out. `clip_` and `before_clip` belong after
    `scaler.unscale_`. An update that a fused optimizer skips for an overflow is read as not
    committed. Others are then not called at all: such a step is not recorded, and its loss
    counts towards the next.

    Attach before `torch.compile` compiles, or at any time: compiled code is compiled anew at
    attaching and detaching, since it would not notice hooks. On several ranks every rank must
    watch; values are those of all of them, joined in one collective a step.

    Two things can round otherwise than without. Inductor does not round what it fuses, and a
    16-bit activation that is looked at ends a fusion: if a whole model with 16-bit weights is one
    graph, compile by blocks, leave out `activations` and `activation_norm`, or set
    `torch._inductor.config.emulate_precision_casts`; autocast is not touched. And torch's fast
    path for *evaluating* `nn.TransformerEncoder` is not taken by modules with hooks.

    Args:
        model: the module that is trained, wrapped or not.
        optimizer: its optimizer.
        level: "minimal", "standard" or "full"; see `foreshock.core.signal.Level`.
        recipe: what to watch with, in place of a level.
        terms: names of the loss terms given to `loss`.
        per_sample: whether `loss` is also given the loss of each sample.
        with_loss: whether the loop tells its loss by `loss`; if not, none is recorded.
        scaler: the gradient scaler, to record its scale.
        parts: patterns for parts of the model that are not found by structure.
        run_dir: where readings and alarms are kept; new or empty. Rank 0 writes.
        last_step: optimizer steps made before, where training goes on from a checkpoint.
        meter: adds up what watching costs, by signal, and as NORMS, DETECTORS and STORAGE.
        sinks: where readings, thresholds and alarms are mirrored, besides the recipe's sinks.
        on_alarm: called with each alarm.
        on_finding: called with each sentence on what is certainly wrong (see `findings`).

    Raises:
        ConfigError: an argument is not allowed.
        RunDirError: the run directory cannot be used.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with Watch(model, optimizer) as watched:
    ...     for _ in range(3):
    ...         loss = model(torch.ones(4, 2)).square().mean()
    ...         loss.backward()
    ...         watched.loss(loss)
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> len(watched.readings("loss/global")), watched.alarms
    (3, [])
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        level: Level | str = Level.STANDARD,
        recipe: Recipe | None = None,
        terms: Sequence[str] = (),
        per_sample: bool = False,
        with_loss: bool = True,
        scaler: Any = None,
        parts: Mapping[str, str | Sequence[str]] | None = None,
        run_dir: str | Path | None = None,
        last_step: int = 0,
        meter: Meter | None = None,
        sinks: Sequence[Sink] = (),
        on_alarm: Callable[[Alarm], None] | None = None,
        on_finding: Callable[[str], None] | None = None,
    ) -> None:
        recipe = recipe if recipe is not None else watching(level)
        if isinstance(optimizer, list | tuple):
            raise ConfigError(
                "watch observes one optimizer, whose step it can tell from that of others; a Guard "
                "takes several"
            )
        parameters = trained_parameters(model, optimizer)
        site = site_of(
            model,
            optimizer,
            parameters,
            scaler=scaler,
            terms=terms,
            per_sample=per_sample,
            parts=parts,
            meter=meter,
        )
        self.alarms: list[Alarm] = []
        """Every alarm so far."""
        self.findings: list[str] = []
        """What is certainly wrong, in sentences: a rank with other weights, a changed shard."""
        self._update = Update(optimizer, parameters)
        signals = tuple(one for one in recipe.signals if with_loss or one.name != LOSS.name)
        self._with_loss = with_loss
        self._site, ranks = site, num_ranks(None)
        self._device = parameters[0][1].device
        if ranks > 1:
            said = [*map(repr, signals), *(path for path, _ in site.parameters)]
            agree("signals or parameters", said, self._device)
        self._observation = Observation(
            signals, site, recipe.lag_steps, join=join if ranks > 1 else None, num_ranks=ranks
        )
        self._record: WatchRecord | None = None
        self._mirroring: Mirroring | None = None
        failure: Exception | None = None
        try:
            observation = self._observation
            self.monitor = recipe.monitor(
                observation.series,
                observation.update_series,
                facts_of(site, {}),
                observation.intervals,
            )
            if run_dir is not None:
                self._record = WatchRecord.begin(
                    Path(run_dir), model, optimizer, observation.series, lag_steps=recipe.lag_steps
                )
            sinks = (*recipe.sinks, *sinks)
            self._mirroring = mirrors_of(sinks, run_dir, self.monitor.limits, self._record)
        except Exception as error:
            failure = error
        try:
            agree("series", self._observation.series, self._device, failure)
        except BaseException:
            self._observation.detach()
            if self._record is not None:
                self._record.close(0)
            raise
        if meter is not None:
            self._time(meter)
        self._told = Told(terms, per_sample, self._device)
        self._on_alarm = on_alarm
        self._on_finding = on_finding
        self._canary: tuple[Canary, Any, int] | None = None
        self._step = last_step
        site.clock.step = last_step + 1
        self._forget_step()
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def loss(self, loss: Any, *, samples: Any = None, **terms: Any) -> None:
        """Tell the loss of a micro-step; several before one update are averaged.

        Args:
            loss: mean loss, a single number.
            samples: `[B]` loss of each sample, if that was announced by `per_sample`.
            terms: its terms, by the names given to `watch`.

        Raises:
            ConfigError: its terms are not those that were announced.
            LoopError: it is not a single number.
        """
        self._told.add(loss, samples, terms, self._step + 1)

    def before_clip(self) -> None:
        """Record the gradients now, before the loop clips them."""
        with torch.no_grad():
            self._early = self._moment_of(self._update.local_sizes(), None)
            self._observation.before_clip(self._early)

    def clip_(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients in place to a global norm, and return the norm before, `[]`.

        As `torch.nn.utils.clip_grad_norm_` does (to 1e-6: this norm is the more exact one),
        by the norms that are recorded anyway; of sharded gradients by that over all ranks, for
        which one more number is reduced, as there. A NaN norm makes every gradient NaN, as there.

        Raises:
            ConfigError: `max_norm` is not above 0.
        """
        if not max_norm > 0:
            raise ConfigError(f"max_norm is {max_norm}; it must be above 0")
        self.before_clip()
        assert self._early is not None
        if self._early.grad_norm is None:
            self._early.grad_norm = self._update.total_norm(self._early.grad_norms)
        total = self._early.grad_norm
        factor = clip_factor(max_norm, total)
        with torch.no_grad():
            self._update.multiply_gradients(factor)
        self._early.clip, self._early.true_factor = max_norm, 1.0 / factor
        return total

    def canary(
        self,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        batch: Any,
        *,
        every_steps: int = 1000,
        **options: Any,
    ) -> None:
        """Let all ranks compute the same micro-batch now and then, and compare the gradients.

        Before they are reduced: afterwards all agree on the wrong value. A rank that computes
        something else is named in `findings`. Leaves everything bit for bit as it was. Every
        rank must call it.

        Args:
            loss_fn: `(model, batch) -> loss []`.
            batch: a micro-batch; the first rank's is taken.
            every_steps: optimizer steps from one run to the next.
            options: those of `foreshock.ranks.canary.Canary`.

        Raises:
            ConfigError: `every_steps` is below 1.
        """
        if every_steps < 1:
            raise ConfigError(f"every_steps is {every_steps}; it must be at least 1")
        canary = Canary(self._site.model, loss_fn, self._device, **options)
        self._canary = (canary, batch, every_steps)

    def readings(self, series: str) -> list[Reading]:
        """What has been read of one series so far, oldest first."""
        self._read(drain=True)
        return self.monitor.timeline.readings(series)

    @property
    def series(self) -> tuple[str, ...]:
        """The names of everything that is measured."""
        return self._observation.series

    @property
    def attached(self) -> tuple[tuple[Signal, Attached], ...]:
        """Every signal that found something to measure."""
        return self._observation.attached

    @property
    def num_partials(self) -> int:
        """Numbers in the one copy of the last step to the host."""
        return self._observation.num_partials

    @property
    def notes(self) -> dict[str, str]:
        """What is not measured as hoped for, by `signal/scope`, and why."""
        return self._observation.notes()

    def close(self) -> None:
        """Read what is left, and leave model and optimizer exactly as they were."""
        try:
            self._read(drain=True)
        finally:
            for hook in self._hooks:
                hook.remove()
            self._observation.detach()
            if self._mirroring is not None:
                self._mirroring.close()
            if self._record is not None:
                self._record.close(self._step)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._with_loss and not self._told.has_loss:
            raise LoopError(
                f"step {self._step + 1}: optimizer.step was called before the loss was told; call "
                "watched.loss(loss), or watch with with_loss=False"
            )
        with torch.no_grad():
            scale = getattr(optimizer, "grad_scale", None)
            if self._early is None:
                moment = self._moment_of(self._update.local_sizes(), scale)
            elif self._early.clip is None:  # the loop has clipped since then: another moment
                moment = dataclasses.replace(self._early)
            else:
                moment = self._early
            moment.lr = float(optimizer.param_groups[0]["lr"])
            self._told.fill(moment)
            self._moment = moment
            self._observation.before_update(moment)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        assert self._moment is not None
        self._step += 1
        with torch.no_grad():
            made = torch.ones((), dtype=torch.bool, device=self._device)
            found_inf = getattr(optimizer, "found_inf", None)
            if found_inf is not None:
                made = (found_inf == 0).reshape(())
            self._observation.after_update(self._moment, made)
        self._forget_step()
        self._read(drain=False)
        if self._canary is not None and self._step % self._canary[2] == 0:
            report = self._canary[0].run(self._canary[1], seed=self._step)
            if not report.agreed:
                self._tell(f"step {self._step}: {report}")

    def _time(self, meter: Meter) -> None:
        """Time what is not done by a signal."""
        self._update.local_sizes = meter.wrap(NORMS, self._update.local_sizes)
        self._update.total_norm = meter.wrap(NORMS, self._update.total_norm)
        self.monitor.observe = meter.wrap(DETECTORS, self.monitor.observe)
        if self._record is not None:
            self._record.take = meter.wrap(STORAGE, self._record.take)
        for name in ("before_update", "after_update"):
            setattr(self._observation, name, meter.wrap(PACKING, getattr(self._observation, name)))

    def _forget_step(self) -> None:
        self._told.forget()
        self._early: Moment | None = None
        self._moment: Moment | None = None

    def _moment_of(self, sizes: Sizes, scale: Any) -> Moment:
        """What the step offers so far: gradients, scaled by `scale` if it is not None."""
        factor = 1.0 if scale is None else 1.0 / scale
        norms, largest, num_zeros = sizes
        if scale is not None:
            norms, largest = norms / scale, None if largest is None else largest / scale
        return Moment(
            step=self._step + 1,
            loss=torch.zeros((), device=self._device),
            grad_norms=norms,
            grad_norm=None if self._site.sharded else self._update.total_norm(norms),
            grad_largest=largest,
            grad_num_zeros=num_zeros,
            lr=0.0,
            true_factor=factor,
            used_factor=factor,
        )

    def _tell(self, finding: str) -> None:
        self.findings.append(finding)
        if self._record is not None:
            self._record.tell(self._step, finding)
        if self._on_finding is not None:
            self._on_finding(finding)

    def _read(self, *, drain: bool) -> None:
        for row in self._observation.read(drain=drain):
            found = self.monitor.observe(1, row.step, row.committed, row.values)
            if self._record is not None:
                self._record.take(row, found)
            if self._mirroring is not None:
                self._mirroring.step(1, self._observation.series, row, found)
            for said in row.findings:
                self._tell(f"step {row.step}: {said}")
            for alarm in found:
                self.alarms.append(alarm)
                if self._on_alarm is not None:
                    self._on_alarm(alarm)


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Watch:
    """Observe a model and its optimizer; see `Watch`, whose options it takes."""
    return Watch(model, optimizer, **options)
