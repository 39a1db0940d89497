"""One optimizer step: micro-steps gathered, gated, updated, observed."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foreshock.core.action import Capability
from foreshock.core.errors import LoopError
from foreshock.core.override import AS_BUILT, Tuning
from foreshock.core.signal import Moment
from foreshock.core.verdict import Verdict, gate_reason
from foreshock.observation import Observation
from foreshock.update import Update


class Stepping:
    """Gathers the micro-steps of a step and carries the step out.

    Args:
        update: the gate and the optimizer.
        observation: what is measured.
        scheduler: stepped once a step, skipped ones included; or None.
        accumulate: micro-steps in a step.
        terms: names of the loss terms, all of which every micro-step must give.
    """

    def __init__(
        self,
        update: Update,
        observation: Observation,
        *,
        scheduler: Any,
        accumulate: int,
        terms: Sequence[str],
    ) -> None:
        self.micro_step = 0
        self.grad_norm: torch.Tensor | None = None
        """Norm `[]` of the last step's gradients before clipping."""
        self._update = update
        self._observation = observation
        self._scheduler = scheduler
        self._accumulate = accumulate
        self._terms = tuple(terms)
        self._loss: torch.Tensor | None = None
        self._term_values: dict[str, torch.Tensor] = {}
        self._samples: list[torch.Tensor] = []

    def add(
        self, loss: Any, terms: Mapping[str, Any], step: int, samples: torch.Tensor | None = None
    ) -> bool:
        """Run the backward pass of one micro-step; True if the step is complete.

        `samples` is the loss of each sample, if it is known.

        Raises:
            LoopError: the loss is not a scalar with a gradient, or its terms are others
                than were announced.
        """
        self._check(loss, step)
        self._check_terms(terms, step)
        share = loss / self._accumulate
        self._update.backward(share)
        self._sum_up(share.detach().reshape(()), terms, self._accumulate, samples)
        return self.micro_step == self._accumulate

    def gathered(
        self,
        share: torch.Tensor,
        terms: Mapping[str, Any],
        step: int,
        samples: torch.Tensor | None = None,
    ) -> None:
        """Take in the loss of a micro-step whose backward pass was run elsewhere.

        Args:
            share: `[]` of the step's loss, the sum over its micro-steps.
            terms: shares of its terms.
            step: for messages.
            samples: the loss of each sample, if it is known.

        Raises:
            LoopError: the loss is not a scalar, or its terms are others than were announced.
        """
        if not isinstance(share, torch.Tensor) or share.numel() != 1:
            raise LoopError(f"step {step}: the loss must be a scalar tensor, got {_kind(share)}")
        self._check_terms(terms, step)
        self._sum_up(share.detach().reshape(()), terms, 1, samples)

    def _sum_up(
        self,
        share: torch.Tensor,
        terms: Mapping[str, Any],
        parts: int,
        samples: torch.Tensor | None,
    ) -> None:
        self._loss = share if self._loss is None else self._loss + share
        for name in self._terms:
            value = torch.as_tensor(terms[name], device=share.device).detach() / parts
            before = self._term_values.get(name)
            self._term_values[name] = value if before is None else before + value
        if samples is not None:
            self._samples.append(samples.detach().reshape(-1))
        self.micro_step += 1

    def finish(
        self,
        step: int,
        gate_limit: float,
        lr_factor: float,
        tuning: Tuning = AS_BUILT,
        *,
        step_schedule: bool = True,
    ) -> Verdict:
        """Gate the update, make it or not, step the schedule unless the loop does, measure.

        Norms are of the gradients as they came, and so is what the gate judges. Signals that
        read gradients themselves see those of embeddings as `tuning` has shrunk them, since
        they are compared with moments.
        """
        sizes, total = self._update.gradient_sizes()
        assert self._loss is not None
        self.grad_norm = total
        used_norm = self._update.shrink_embeddings(total, sizes.norms, tuning)
        moment = Moment(
            step=step,
            loss=self._loss,
            grad_norms=sizes.norms,
            grad_largest=sizes.largest,
            grad_num_zeros=sizes.num_zeros,
            grad_norm=total,
            lr=self._update.lr(lr_factor, tuning),
            clip=self._update.max_norm(tuning),
            terms=self._term_values,
            samples_loss=torch.cat(self._samples) if self._samples else None,
            used_factor=self._update.clip_factor(used_norm, tuning),
        )
        with torch.no_grad():
            self._observation.before_update(moment)
        commit = self._update.commit_or_skip(total, gate_limit, lr_factor, tuning, used_norm)
        if step_schedule:
            self._step_schedule()
        with torch.no_grad():
            self._observation.after_update(moment, commit)
        self._begin_anew()
        if Capability.SKIP_WITHOUT_HOST_WAIT in self._update.capabilities:
            return Verdict(step=step, committed=None)
        committed = bool(commit)
        reason = "" if committed else gate_reason(float(total), gate_limit)
        return Verdict(step=step, committed=committed, reason=reason)

    def _step_schedule(self) -> None:
        if self._scheduler is None:
            return
        with warnings.catch_warnings():
            # torch warns if the very first update was skipped; that is as it should be here.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self._scheduler.step()

    def forget(self) -> None:
        """Drop what has been gathered of a step."""
        if self.micro_step:
            self._update.drop_gradients()
            self._observation.drop_step()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._loss, self._term_values, self.micro_step = None, {}, 0
        self._samples = []

    def _check(self, loss: Any, step: int) -> None:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise LoopError(
                f"step {step}: the loss must be a scalar tensor with a gradient, got {_kind(loss)}"
            )

    def _check_terms(self, terms: Mapping[str, Any], step: int) -> None:
        if set(terms) != set(self._terms):
            raise LoopError(
                f"step {step}: loss terms {sorted(terms)} were given, but the Guard was built "
                f"with terms={sorted(self._terms)}"
            )


def _kind(loss: Any) -> str:
    if not isinstance(loss, torch.Tensor):
        return type(loss).__name__
    return f"tensor of shape {tuple(loss.shape)}, requires_grad={loss.requires_grad}"
