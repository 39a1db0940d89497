"""Power losses on a simulated disk that forgets and reorders what was not synced; one rank."""

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.recovery.account import Account, account_of, losses
from benchmarks.recovery.kill import MOST_KILLS, rng_of
from benchmarks.recovery.training import Ended, train
from tests.simulated_disk import PowerLoss, SimulatedDisk, _files

RUN = Path("/run/a")


class Simulated(NamedTuple):
    """A run that nobody disturbed, on a simulated disk.

    Attributes:
        digest: of its state at the end.
        account: of its incidents and samples.
        num_changes: changes of the disk.
        num_until_begun: changes until its first snapshot is on disk, from which on it must live.
    """

    digest: str
    account: Account
    num_changes: int
    num_until_begun: int


def undisturbed_on_simulated(text: bytes) -> Simulated:
    """Run without a loss of power."""
    disk = SimulatedDisk()
    begun: list[int] = []
    ended = train(0, 1, RUN, text, disk=disk, before_step=lambda _: begun.append(disk.num_changes))
    account = account_of(disk, RUN)
    return Simulated(ended.digest, account, disk.num_changes, begun[0])


def power_trial(key: str, reference: Simulated, text: bytes) -> dict[str, Any]:
    """Lose the power, or the process alone, one to three times; compare what the run ends as."""
    rng = rng_of(key)
    disk = SimulatedDisk()
    kills: list[dict[str, Any]] = []
    most = reference.num_changes
    for left in range(int(rng.integers(1, MOST_KILLS + 1)), -1, -1):
        number, power = int(rng.integers(1, most)), bool(rng.random() < 0.8)
        torn, back = (int(one) for one in rng.integers(1 << 31, size=2))
        if left:
            disk.fail_after(number, PowerLoss(), seed=torn)
        try:
            ended = train(0, 1, RUN, text, disk=disk)
        except PowerLoss:
            kills.append({"place": "power" if power else "process", "number": number})
            if power:
                disk = disk.crash(back)
            kill_process(disk)
        except Exception as error:
            said = f"start {len(kills) + 1}: {type(error).__name__}: {error}"
            return {"lost": [said[:2000]], "bitexact": False, "kills": kills}
        else:
            kill_process(disk)  # a moment that never came is not waited for any more
            if not left:
                return of_simulated(reference, ended, disk) | {"kills": kills}
        most = max(2, reference.num_changes // 2)
    raise AssertionError("the last start has no end")


def kill_process(disk: SimulatedDisk) -> None:
    """`kill -9`: every change so far is still there, also where it came in the middle of a sync.

    The simulated disk takes what was not synced for lost when a sync does not return. That is
    right after an error or a loss of power, and not if the process alone has gone.
    """
    for file in _files(disk._root):
        for change in file.pending:
            change.lost = False
    disk.kill_process()


def of_simulated(reference: Simulated, ended: Ended, disk: SimulatedDisk) -> dict[str, Any]:
    """What a run on a simulated disk lost, and whether its bits are those of the reference."""
    lost = losses(reference.account, account_of(disk, RUN))
    if ended.halted is not None:
        lost = [ended.halted, *lost]
    return {"lost": [one[:2000] for one in lost], "bitexact": ended.digest == reference.digest}
