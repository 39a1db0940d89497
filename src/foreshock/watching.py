"""`watch`: every signal and every alarm of a loop that stays its own; nothing is changed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foreshock.core.detector import Alarm
from foreshock.core.errors import ConfigError, LoopError
from foreshock.core.names import LOSS
from foreshock.core.reading import Reading
from foreshock.core.signal import Moment, Site
from foreshock.observation import Observation
from foreshock.recipes import Recipe, watching
from foreshock.update import Update, trained_parameters


class Watch:
    """Observes a model and its optimizer from the outside.

    Hooks on `optimizer.step` measure just before and just after each update; the training
    is bit-identical with and without. Values are read `lag_steps` later, as in the Guard.

    Gradients are taken as they are when `optimizer.step` is called. A loop that clips
    before that shows clipped norms: call `before_clip()` just before clipping to record the
    true ones.

    With a `GradScaler`, `scaler.step` hands the scale over where gradients are still scaled
    (fused optimizers); it is divided out. `before_clip()` belongs after `scaler.unscale_`. An
    update that a fused optimizer skips for an overflow is read as not committed. Others are
    then not called at all: such a step is not recorded, and its loss counts towards the next.

    Args:
        model: the module that is trained.
        optimizer: its optimizer.
        recipe: what to watch with; `recipes.watching()` by default.
        terms: names of the loss terms given to `loss`.
        with_loss: whether the loop tells its loss by `loss`; if not, none is recorded.
        on_alarm: called with each alarm.

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
        recipe: Recipe | None = None,
        terms: Sequence[str] = (),
        with_loss: bool = True,
        on_alarm: Callable[[Alarm], None] | None = None,
    ) -> None:
        recipe = recipe if recipe is not None else watching()
        parameters = trained_parameters(model, optimizer)
        site = Site(
            model=model, optimizer=optimizer, parameters=tuple(parameters), terms=tuple(terms)
        )
        self.alarms: list[Alarm] = []
        """Every alarm so far."""
        self._update = Update(optimizer, parameters)
        signals = tuple(one for one in recipe.signals if with_loss or one.name != LOSS.name)
        self._with_loss = with_loss
        self._observation = Observation(signals, site, recipe.lag_steps)
        try:
            self.monitor = recipe.monitor(
                self._observation.series, self._observation.update_series, {}
            )
        except BaseException:
            self._observation.detach()
            raise
        self._terms = tuple(terms)
        self._on_alarm = on_alarm
        self._step = 0
        self._losses: list[torch.Tensor] = []
        self._terms_seen: dict[str, list[torch.Tensor]] = {}
        self._norms: tuple[torch.Tensor, torch.Tensor] | None = None
        self._moment: Moment | None = None
        self._device = parameters[0][1].device
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def loss(self, loss: Any, **terms: Any) -> None:
        """Tell the loss of a micro-step; several before one update are averaged.

        Raises:
            ConfigError: its terms are not those that were announced.
            LoopError: it is not a single number.
        """
        if set(terms) != set(self._terms):
            raise ConfigError(
                f"loss terms {sorted(terms)} were given, but watch was called with "
                f"terms={sorted(self._terms)}"
            )
        told = {name: self._number(name, value) for name, value in ({"": loss} | terms).items()}
        self._losses.append(told.pop(""))
        for name, term in told.items():
            self._terms_seen.setdefault(name, []).append(term)

    def before_clip(self) -> None:
        """Record the gradient norms now, before the loop clips them."""
        with torch.no_grad():
            self._norms = self._update.gradient_norms()

    def readings(self, series: str) -> list[Reading]:
        """What has been read of one series so far, oldest first."""
        self._read(drain=True)
        return self.monitor.timeline.readings(series)

    @property
    def series(self) -> tuple[str, ...]:
        """The names of everything that is measured."""
        return self._observation.series

    def close(self) -> None:
        """Read what is left, and leave model and optimizer exactly as they were."""
        try:
            self._read(drain=True)
        finally:
            for hook in self._hooks:
                hook.remove()
            self._observation.detach()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._with_loss and not self._losses:
            raise LoopError(
                f"step {self._step + 1}: optimizer.step was called before the loss was told; call "
                "watched.loss(loss), or watch with with_loss=False"
            )
        with torch.no_grad():
            norms, total = self._norms or self._unscaled(optimizer)
            self._moment = Moment(
                loss=self._mean(self._losses),
                grad_norms=norms,
                grad_norm=total,
                lr=float(optimizer.param_groups[0]["lr"]),
                terms={name: self._mean(self._terms_seen.get(name, [])) for name in self._terms},
            )
            self._observation.before_update(self._moment)

    def _unscaled(self, optimizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        norms, total = self._update.gradient_norms()
        scale = getattr(optimizer, "grad_scale", None)
        return (norms, total) if scale is None else (norms / scale, total / scale)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        assert self._moment is not None
        self._step += 1
        with torch.no_grad():
            made = torch.ones((), dtype=torch.bool, device=self._device)
            found_inf = getattr(optimizer, "found_inf", None)
            if found_inf is not None:
                made = (found_inf == 0).reshape(())
            self._observation.after_update(self._moment, self._step, made)
        self._norms, self._moment = None, None
        self._losses, self._terms_seen = [], {}
        self._read(drain=False)

    def _number(self, name: str, value: Any) -> torch.Tensor:
        found = torch.as_tensor(value).detach()
        if found.numel() != 1:
            what = f"loss term {name!r}" if name else "loss"
            raise LoopError(
                f"step {self._step + 1}: the {what} must be a single number, got a tensor of "
                f"shape {tuple(found.shape)}; tell its mean"
            )
        return found.reshape(())

    def _mean(self, values: list[torch.Tensor]) -> torch.Tensor:
        if not values:
            return torch.zeros((), device=self._device)
        return torch.stack([value.to(self._device, torch.float32) for value in values]).mean()

    def _read(self, *, drain: bool) -> None:
        for row in self._observation.read(drain=drain):
            for alarm in self.monitor.observe(1, row.step, row.committed, row.values):
                self.alarms.append(alarm)
                if self._on_alarm is not None:
                    self._on_alarm(alarm)


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Watch:
    """Observe a model and its optimizer; see `Watch`, whose options it takes."""
    return Watch(model, optimizer, **options)
