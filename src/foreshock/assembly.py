"""Assembly: what a Guard is made of, put together on one rank or on all."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from foreshock.admission import (
    capabilities_of,
    check_policy,
    check_scheduler,
    open_journal,
    run_identity,
)
from foreshock.attachment import agree, facts_of, join, site_of
from foreshock.attempts import Attempts, Progress
from foreshock.control import Control
from foreshock.core.action import Capability
from foreshock.core.errors import ConfigError
from foreshock.core.signal import Site
from foreshock.data.stream import Stream
from foreshock.durable import Disk
from foreshock.feed import Feed
from foreshock.given import Given
from foreshock.intake import Intake
from foreshock.journal import Journal
from foreshock.monitor import Monitor
from foreshock.notices import Notices, sinks_of
from foreshock.observation import Observation
from foreshock.policy_tables import fitted
from foreshock.quiet_disk import QuietDisk
from foreshock.ranks.agreement import Ranks
from foreshock.recovery import Recovery
from foreshock.replicated import (
    ModuleOfRanks,
    PerRankPart,
    agreed_probes,
    check_stream,
    one_norm,
    plain_module,
)
from foreshock.run_state import RunState
from foreshock.sharded import is_sharded, sharing_of
from foreshock.snapshots.parts import GlobalRandomPart, Part, part_for
from foreshock.stepping import Stepping
from foreshock.supervision import Supervisor
from foreshock.unison import Unison
from foreshock.update import Update, trained_parameters
from foreshock.upkeep import DataUpkeep


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What a Guard is made of."""

    ranks: Ranks
    unison: Unison
    feed: Feed
    random: GlobalRandomPart
    state: RunState
    observation: Observation
    intake: Intake
    capabilities: frozenset[Capability]
    journal: Journal
    monitor: Monitor
    stepping: Stepping
    attempts: Attempts
    control: Control
    supervisor: Supervisor
    recovery: Recovery
    notices: Notices
    upkeep: DataUpkeep
    resumes: bool
    start: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """What each rank makes by itself."""

    feed: Feed
    update: Update
    site: Site
    capabilities: frozenset[Capability]
    parts: dict[str, Any]
    rewound: dict[str, Part]
    random: GlobalRandomPart


def assemble(given: Given, ranks: Ranks, undo: ExitStack) -> Pieces:
    """Put a Guard together; collective on several ranks.

    Args:
        given: what the Guard was given, the same on every rank.
        ranks: all of them.
        undo: takes what is to be undone if the Guard cannot be built after all.

    Raises:
        CapabilityError: the policy asks for what this loop cannot do.
        RunDirError: the run directory cannot be used.
        ConfigError: an argument is not allowed, or the ranks were given different ones.
        RankError: a rank did not come.
    """
    recipe = given.recipe
    run_json = given.run_dir / "run.json"
    resumes = ranks.from_first(
        "resume", lambda: given.disk.exists(run_json) if given.resume is None else given.resume
    )
    loop = ranks.all_or_none("setting up", lambda: _loop(given, ranks, resume=resumes))
    notices = ranks.all_or_none(
        "whom to tell",
        lambda: _notices(given, lambda fields: journal.write(**fields), lambda: monitor, ranks),
    )
    undo.callback(notices.close)
    check_stream(loop.feed.stream, given.model, ranks)
    observation = _observation(loop, given, ranks)
    undo.callback(observation.detach)
    # Only the first rank writes; the others read what it has written.
    disk: Disk = given.disk if ranks.is_first else QuietDisk(given.disk)
    identity = run_identity(
        given.name, loop.parts, accumulate=given.accumulate, lag_steps=recipe.lag_steps
    )
    journal = _journal(given, ranks, identity, undo, resume=resumes)
    folder, cadence, clock = given.run_dir / "snapshots", recipe.cadence, given.clock
    if ranks.size > 1:
        clock = partial(ranks.from_first, "the clock", given.clock)
    sharing = sharing_of(given.model, given.disk, folder, ranks)
    state = RunState(
        loop.rewound,
        disk=given.disk if sharing.accord.is_spread else disk,
        folder=folder,
        cadence=cadence,
        store=sharing.store,
        accord=sharing.accord,
        num_ranks=ranks.size,
    )
    monitor = recipe.monitor(
        observation.series,
        observation.update_series,
        facts_of(loop.site, given.facts),
        observation.intervals,
    )
    stepping = Stepping(
        loop.update,
        observation,
        scheduler=given.scheduler,
        accumulate=given.accumulate,
        terms=given.terms,
    )
    stream = loop.feed.stream
    attempts = Attempts(
        Progress(),
        state,
        journal,
        monitor=monitor,
        observation=observation,
        optimizer=given.optimizer,
        stream=stream,
        cadence=cadence,
        clock=clock,
        model=given.model,
    )
    unison = Unison(
        ranks, journal, attempts, monitor=monitor, stream=stream, disk=given.disk, clock=given.clock
    )
    control = Control(
        attempts,
        journal,
        capabilities=loop.capabilities,
        model=plain_module(given.model),
        probes=agreed_probes(given.probes, ranks),
        stream=stream,
        disk=disk,
        site=loop.site,
        clock=given.clock,
        from_first=ranks.from_first,
        asked_to_stop=lambda: given.stop.heard,
    )
    supervisor = Supervisor(
        monitor,
        fitted(recipe.policy, loop.capabilities),
        journal,
        has_scaler=given.scaler is not None,
        findings=attempts.findings,
        snapshots=attempts.refs,
        position_after=attempts.position_after,
        lag_steps=recipe.lag_steps,
        num_samples=None if stream is None else stream.order.total,
        advise=recipe.advise,
        tell=notices.tell,
    )
    if stream is not None:
        stream.rules = () if recipe.advise else recipe.rules
        stream.on_reject = control.rejected
    return Pieces(
        ranks=ranks,
        unison=unison,
        feed=loop.feed,
        random=loop.random,
        state=state,
        observation=observation,
        intake=Intake(observation, journal, control, supervisor, notices.tell),
        capabilities=loop.capabilities,
        journal=journal,
        monitor=monitor,
        stepping=stepping,
        attempts=attempts,
        control=control,
        supervisor=supervisor,
        recovery=Recovery(attempts, control, supervisor, notices.tell),
        notices=notices,
        upkeep=DataUpkeep(
            loop.feed,
            attempts,
            monitor,
            journal,
            disk=disk,
            num_ranks=ranks.size,
            is_first=ranks.is_first,
            from_first=ranks.from_first,
            exchange=ranks.exchange if ranks.size > 1 else None,
            tell=notices.tell,
        ),
        resumes=resumes,
        start=ranks.from_first("what it starts with", lambda: given.start(stream, ranks.size)),
    )


def _notices(
    given: Given,
    write: Callable[[dict[str, Any]], Any],
    monitor: Callable[[], Monitor],
    ranks: Ranks,
) -> Notices:
    """Whom the first rank tells, and where it mirrors; checked before a run directory is made."""

    def record(kind: str, attempt: int, step: int, fields: dict[str, Any]) -> None:
        write({"kind": kind, "attempt": attempt, "step": step, "durable": False, **fields})

    sinks = sinks_of(given.recipe.sinks, os.environ) if ranks.is_first else ()
    return Notices(
        sinks,
        run_dir=given.run_dir,
        limits=lambda: monitor().limits(),
        record=record,
        tell=given.tell,
    )


def _loop(given: Given, ranks: Ranks, *, resume: bool) -> _Loop:
    if given.accumulate < 1:
        raise ConfigError(f"accumulate is {given.accumulate}; it must be at least 1 micro-step")
    feed = Feed(given.stream)
    model = plain_module(given.model)
    parameters = trained_parameters(model, given.optimizer)
    update = Update(
        given.optimizer,
        parameters,
        scaler=given.scaler,
        clip=given.clip,
        model=model,
        gated=not given.recipe.advise,
        agree=one_norm if ranks.size > 1 else None,
    )
    capabilities = capabilities_of(update, feed.stream)
    why = feed.why_not_rewindable
    check_policy(given.recipe.policy, capabilities, resume=resume, why_not_rewindable=why)
    check_scheduler(given.scheduler)
    parts = {
        "model": model,
        "optimizer": given.optimizer,
        "scheduler": given.scheduler,
        "scaler": given.scaler,
        "stream": feed.stream,
    }
    present = {key: part for key, part in parts.items() if part is not None}
    random = GlobalRandomPart()
    own = is_sharded(model)
    rewound = {key: part_for(key, one) for key, one in present.items()}
    rewound["model"] = ModuleOfRanks(rewound["model"], given.model)
    if "stream" in rewound and not isinstance(feed.stream, Stream):
        rewound["stream"] = PerRankPart("stream", rewound["stream"], ranks, any_size=False, own=own)
    site = site_of(
        given.model,
        given.optimizer,
        parameters,
        scaler=given.scaler,
        clip=given.clip,
        terms=given.terms,
        per_sample=given.per_sample,
    )
    return _Loop(
        feed=feed,
        update=update,
        site=site,
        capabilities=capabilities,
        parts=present,
        rewound={"random": PerRankPart("random", random, ranks, own=own), **rewound},
        random=random,
    )


def _observation(loop: _Loop, given: Given, ranks: Ranks) -> Observation:
    """Attach the signals; the same on every rank, or on none."""
    recipe = given.recipe
    if ranks.size == 1:
        return Observation(recipe.signals, loop.site, recipe.lag_steps)
    device = loop.site.parameters[0][1].device
    said = [*map(repr, recipe.signals), *(path for path, _ in loop.site.parameters)]
    agree("signals or parameters", said, device)
    observation = ranks.all_or_none(
        "attaching signals",
        lambda: Observation(
            recipe.signals,
            loop.site,
            recipe.lag_steps,
            join=join,
            num_ranks=ranks.size,
            stop_signal=lambda: given.stop.heard,
        ),
    )
    try:
        agree("series", observation.series, device)
    except BaseException:
        observation.detach()
        raise
    return observation


def _journal(
    given: Given, ranks: Ranks, identity: dict[str, Any], undo: ExitStack, *, resume: bool
) -> Journal:
    """The first rank's journal, and on the others one that follows it.

    What has been decided before is read by the first rank alone, and sent: a network file
    system may show another rank an older file.
    """
    opened: list[Journal] = []

    def begin() -> dict[str, Any]:
        journal = open_journal(given.disk, given.run_dir, identity, given.clock, resume=resume)
        undo.callback(journal.close)
        opened.append(journal)
        if ranks.size == 1:
            return {}
        return {
            "identity": journal.identity,
            "records": journal.records,
            "last_attempt": journal.last_attempt,
        }

    heard = ranks.from_first("journal", begin)
    if opened:
        return opened[0]
    return Journal.follow(
        QuietDisk(),
        given.run_dir,
        heard["identity"],
        heard["records"],
        given.clock,
        last_attempt=heard["last_attempt"],
    )
