"""kill -9 of random ranks at random moments, restarts, and what the run was like in the end."""

import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.recovery.account import Account, account_of, losses
from benchmarks.recovery.moments import HOW, Moment
from benchmarks.recovery.processes import KILLED, Outcome, run_ranks
from benchmarks.recovery.training import Layout
from foreshock.durable import RealDisk

MOST_KILLS = 3
_MOST_REDRAWS = 8
_STOPPED = (
    "RankError: ",
    "DistBackendError: ",
    "DistNetworkError: ",
    "DistStoreError: ",
    "RuntimeError: Wait timeout",
)
"""How the error of a rank begins that another has left: by the Guard, or, where it was within
the code of DDP or FSDP, by torch."""


class Reference(NamedTuple):
    """A run that nobody disturbed.

    Attributes:
        world: number of ranks.
        layout: how the model lies on them.
        digest: of its state at the end.
        account: of its incidents and samples.
        counts: how often each rank came to each place.
        secs: how long it took.
        error: why there is none, or "".
    """

    world: int
    layout: Layout
    digest: str
    account: Account | None
    counts: list[dict[str, int]]
    secs: float
    error: str = ""


def rng_of(key: str) -> np.random.Generator:
    """The generator of a trial: the same for the same key, anywhere."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed)


def undisturbed(world: int, layout: Layout, text: Path) -> Reference:
    """Run without a kill, counting what there is to be killed in."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        begun = time.monotonic()
        found = run_ranks(world, layout, run_dir, text, counting=True)
        secs = time.monotonic() - begun
        said = next((one.said for one in found if one.code != 0 or one.said), "")
        if said:
            return Reference(world, layout, "", None, [], secs, said)
        account = account_of(RealDisk(), run_dir)
        digests = {one.digest for one in found}
        wrong = losses(account, account)
        if len(digests) != 1 or wrong or not account.incidents:
            said = f"the undisturbed run is no reference: {digests}, {wrong}"
            return Reference(world, layout, "", None, [], secs, said)
        counts = [one.counts for one in found]
        return Reference(world, layout, found[0].digest, account, counts, secs)


def draw(rng: np.random.Generator, reference: Reference, num_struck: int) -> Moment:
    """A moment at which a rank of the run is killed; later kills come sooner after a restart."""
    rank = int(rng.integers(reference.world))
    counts = reference.counts[rank]
    places = ["time", *(place for place, number in counts.items() if number >= 4)]
    if "disk" in places:
        places.append("disk")  # there are most of them, and each is another state to come back to
    place = str(rng.choice(places))
    most = 100 if place == "time" else counts[place]
    if num_struck:
        most = max(2, most // 2)
    number = int(rng.integers(1, most + 1))
    return Moment(rank, place, number, str(rng.choice(HOW)), bool(rng.random() < 0.5))


def kill_trial(key: str, reference: Reference, text: Path) -> dict[str, Any]:
    """Kill a run one to three times in a row, and compare what it ends as; see `verdict`."""
    rng = rng_of(key)
    num_kills = int(rng.integers(1, MOST_KILLS + 1))
    kills: list[Moment] = []
    troubles: list[str] = []
    lines: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        redraws = 0
        while len(kills) < num_kills and redraws < _MOST_REDRAWS:
            moment = draw(rng, reference, len(kills))
            found = _run(reference, run_dir, text, moment)
            if not any(one.code == KILLED for one in found):
                if kills:  # it came to its end before the moment did
                    break
                redraws += 1
                run_dir = Path(folder) / f"run{redraws}"
                continue
            kills.append(moment)
            troubles += _of_the_others(found, moment)
            troubles += _forgotten(lines, lines := _decided(run_dir))
        last = run_ranks(reference.world, reference.layout, run_dir, text)
        troubles += _forgotten(lines, _decided(run_dir))
        return verdict(reference, last, run_dir, troubles) | {
            "kills": [kill._asdict() for kill in kills]
        }


def verdict(
    reference: Reference, last: list[Outcome], run_dir: Path, troubles: list[str]
) -> dict[str, Any]:
    """What the last start of a run came to: what it lost, and whether its bits are the same."""
    said = [f"rank {rank}: {one.said}" for rank, one in enumerate(last) if one.code or one.said]
    troubles = troubles + said
    if not said and reference.account is not None:
        troubles += losses(reference.account, account_of(RealDisk(), run_dir))
    exact = not said and {one.digest for one in last} == {reference.digest}
    return {"lost": [one[:2000] for one in troubles], "bitexact": exact}


def _run(reference: Reference, run_dir: Path, text: Path, moment: Moment) -> list[Outcome]:
    after = moment.number / 100 * reference.secs if moment.place == "time" else None
    return run_ranks(
        reference.world, reference.layout, run_dir, text, moment=moment, kill_after_secs=after
    )


def _of_the_others(found: list[Outcome], moment: Moment) -> list[str]:
    """What is wrong with how the ranks ended that nobody killed: each must stop by itself."""
    said: list[str] = []
    for rank, one in enumerate(found):
        if rank == moment.rank or moment.whole:
            continue
        if not one.begun:
            continue
        if one.hung:
            said.append(f"rank {rank} hung after rank {moment.rank} was killed at {moment}")
        elif one.code != 0 and not one.said.startswith(_STOPPED) and "gloo" not in one.said:
            said.append(f"rank {rank} ended on {one.said!r:.300} after a kill at {moment}")
    return said


def _decided(run_dir: Path) -> list[bytes]:
    """The whole lines of the journal as it stands."""
    path = run_dir / "decisions.jsonl"
    text = path.read_bytes() if path.exists() else b""
    return text.split(b"\n")[:-1]


def _forgotten(before: list[bytes], after: list[bytes]) -> list[str]:
    """A killed process's decisions are still in the system's cache: none may go."""
    if after[: len(before)] == before:
        return []
    same = sum(one == other for one, other in zip(before, after, strict=False))
    return [f"of {len(before)} decisions in the journal {same} were left after a restart"]
