"""A run of nothing but data, in a process of its own, that kills itself at a chosen moment.

    python mini_run.py RUN_DIR BATCH_SIZE WORLD_SIZE NUM_POSITIONS KILL_AT

It steps through a stream on `WORLD_SIZE` streams at once, journals what a Guard would, takes in
requests, looks after what came back, and goes back where a bad sample does harm again. The
process dies by SIGKILL in the `KILL_AT`-th of its moments (0: never): before and after every
record, saved state and request.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path

from foreshock.core.errors import StreamError
from foreshock.data.requests import Requests, ids_done
from foreshock.data.stream import Stage, Stream
from foreshock.durable import RealDisk, write_file
from foreshock.journal import Journal

BAD = ("b", 7)
"""The sample that does harm whenever it trains."""

A = [["a", n] for n in range(61)]
B = [["b", n] for n in range(29)]
STAGES = [
    Stage(name="one", sources={"a": A, "b": B}),
    Stage(
        name="two", sources={"a": A, "b": B}, weights={"a": 1, "b": 1}, num_samples=80, repeats=5
    ),
]


def stream_of(batch_size: int, rank: int = 0, world_size: int = 1) -> Stream:
    return Stream(
        STAGES, batch_size=batch_size, seed=11, collate=list, rank=rank, world_size=world_size
    )


class Run:
    def __init__(self, run_dir: Path, batch_size: int, world_size: int, kill_at: int) -> None:
        self.disk = RealDisk()
        self.run_dir = run_dir
        self.kill_at, self.moment = kill_at, 0
        self.streams = [stream_of(batch_size, rank, world_size) for rank in range(world_size)]
        identity = {"program": "mini", "fingerprint": "", "stream": self.streams[0].describe()}
        if (run_dir / "run.json").exists():
            self.journal = Journal.open(self.disk, run_dir, identity, lambda: 0.0)
        else:
            self.journal = Journal.create(self.disk, run_dir, identity, lambda: 0.0)
        for record in self.journal.records:
            self.take_in(record)
        self.requests = Requests(self.disk, run_dir, ids_done(self.journal.records))
        self.step, self.recent = 0, []
        self.go_back()

    def may_die(self) -> None:
        self.moment += 1
        if self.moment == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def take_in(self, record: dict) -> None:
        for stream in self.streams:
            stream.apply(record)

    def write(self, kind: str, **fields) -> None:
        self.may_die()
        record = self.journal.write(kind, attempt=self.attempt, step=self.step, **fields)
        self.may_die()
        self.take_in(record)

    @property
    def states(self) -> list[Path]:
        return sorted(self.run_dir.glob("state-*.json"))

    def go_back(self, before_step: int | None = None) -> None:
        for path in reversed(self.states):
            state = json.loads(path.read_text())
            if before_step is None or state["step"] < before_step:
                self.step, self.recent = state["step"], state["recent"]
                for stream in self.streams:
                    stream.load_state_dict(state["stream"])
                break
            path.unlink()
        else:
            self.step, self.recent = 0, []
            for stream in self.streams:
                stream.load_state_dict({"position": 0})
        self.attempt = self.journal.last_attempt + 1
        self.journal.write("attempt_started", attempt=self.attempt, step=self.step)
        self.journal.open_provenance(self.attempt)

    def save(self) -> None:
        self.may_die()
        self.journal.sync()
        state = {"step": self.step, "recent": self.recent[-200:]}
        state["stream"] = self.streams[0].state_dict()
        path = self.run_dir / f"state-{self.step:06d}.json"
        write_file(self.disk, path, [json.dumps(state).encode()])
        self.may_die()

    def look_for_requests(self) -> None:
        for request in self.requests.pending()[0]:
            stream = self.streams[0]
            try:
                told = request.records(stream.ledger, stream.order, stream.position)
            except StreamError as error:
                told = [("request_refused", {"request": request.request, "reason": str(error)})]
            for kind, fields in told:
                self.write(kind, **fields)
            self.requests.finish(request)
            self.may_die()

    def train(self) -> None:
        batches = [stream.next_batch() for stream in self.streams]
        assert len({batch.positions for batch in batches}) == 1
        assert len({tuple(stream.state_dict().items()) for stream in self.streams}) == 1
        ids = batches[0].ids
        data = [sample for batch in batches for sample in batch.data]
        assert data == [[one.source, one.index] for one in ids]
        self.step += 1
        positions = list(batches[0].positions)
        self.recent.append([self.step, positions])
        self.journal.append_provenance(self.step, positions)
        harmed = BAD in [one[1:] for one in ids]
        stream = self.streams[0]
        outcomes = [
            one.ledger.judge(
                self.recent[-200:],
                self.step,
                [self.step] if harmed else [],
                position=stream.position,
            )
            for one in self.streams
        ]
        assert all(one == outcomes[0] for one in outcomes)
        for outcome in outcomes[0]:
            self.write("reflowed", **outcome.to_json())
        if harmed:
            if not any(one.key == BAD for one in batches[0].returned):
                window = [max(0, positions[0] - 8), positions[-1] + 1]
                entry = {"entry_id": f"plan{self.step}/0", "reason": "harm", "ids": []}
                entry |= {"window": window, "incident": None, "rule": None}
                self.write("quarantined", entry=entry)
            blamed = [one.trained_step for one in outcomes[0] if one.outcome == "alarmed"]
            self.go_back(before_step=min([self.step, *blamed]))
        elif self.step % 3 == 0:
            self.save()


def main() -> None:
    run_dir, batch_size, world_size, num_positions, kill_at = sys.argv[1:]
    run = Run(Path(run_dir), int(batch_size), int(world_size), int(kill_at))
    for _ in itertools.count():
        run.look_for_requests()
        if run.streams[0].position >= int(num_positions):
            break
        run.train()
    run.save()
    run.journal.close()
    print(run.moment)


if __name__ == "__main__":
    main()
