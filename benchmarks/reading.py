"""What reading a log costs: ours against the shortest loop that gets the same numbers.

python -m benchmarks.reading [--json FILE] [--lines 200000] [--repeats 3] [FORMAT ...]

The other side is a plain pass in Python with one compiled pattern: a search a line, `float` of
its groups, appended to lists. It knows neither runs nor restarts, ranks, NaN that are not
printed or damaged lines. Event files are read against TensorBoard's EventAccumulator. Times are
of the processor; both sides alternate in one process, and the ratio is the median of the pairs.
"""

import argparse
import json
import os
import platform
import random
import re
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from foreshock.catalog import members
from foreshock.logs import read_log

_NUMBER = r"([-+.\w]+)"

FORMATS: dict[str, tuple[str, str, str]] = {
    "megatron": (
        " [2026-01-05 10:00:00] iteration {n:8}/ 9000000 | consumed samples: {n:12} | elapsed time "
        "per iteration (ms): 2915.3 | learning rate: {lr:.6E} | global batch size:   512 | "
        "lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped "
        "iterations:   0 | number of nan iterations:   0 |\n",
        rf"iteration\s+(\d+)/.*?learning rate: {_NUMBER} .*?lm loss: {_NUMBER} \| loss scale: "
        rf"{_NUMBER} \| grad norm: {_NUMBER} \| number of skipped iterations:\s+(\d+) \| number of "
        r"nan iterations:\s+(\d+)",
        "",
    ),
    "hf_stdout": (
        "{{'loss': {loss:.4f}, 'grad_norm': {norm:.6f}, 'learning_rate': {lr:.3e}, "
        "'epoch': {epoch:.2f}}}\n",
        rf"'loss': {_NUMBER}, 'grad_norm': {_NUMBER}, 'learning_rate': {_NUMBER}, "
        rf"'epoch': {_NUMBER}",
        "",
    ),
    "nanogpt": (
        "iter {n}: loss {loss:.4f}, time 231.50ms, mfu 31.20%\n",
        rf"iter (\d+): loss {_NUMBER},",
        "",
    ),
    "fairseq": (
        "2026-01-05 10:00:00 | INFO | train_inner | epoch 001:  {n:6} / 900000 loss={loss:.3f}, "
        "nll_loss={loss:.3f}, ppl=90.1, wps=31000, ups=1.5, wpb=20000, bsz=512, num_updates={n}, "
        "lr={lr:.6e}, gnorm={norm:.3f}, loss_scale=16, train_wall=64, wall=900\n",
        rf" loss={_NUMBER}, nll_loss={_NUMBER}, ppl={_NUMBER}, .*?num_updates=(\d+), lr={_NUMBER}, "
        rf"gnorm={_NUMBER}, loss_scale={_NUMBER},",
        "",
    ),
    "mmengine": (
        "01/05 10:00:00 - mmengine - INFO - Epoch(train)   [1][{n:6}/900000]  lr: {lr:.4e}  "
        "eta: 1 day, 0:10:00  time: 0.51  data_time: 0.01  memory: 9000  grad_norm: {norm:.4f}  "
        "loss: {loss:.4f}  loss_cls: {loss:.4f}\n",
        rf"\[(\d+)\]\[\s*(\d+)/\d+\]  lr: {_NUMBER}  .*?grad_norm: {_NUMBER}  loss: {_NUMBER}  "
        rf"loss_cls: {_NUMBER}",
        "",
    ),
    "jsonl": (
        '{{"step": {n}, "loss": {loss:.6f}, "grad_norm": {norm:.6f}, "lr": {lr:.3e}}}\n',
        rf'"step": (\d+), "loss": {_NUMBER}, "grad_norm": {_NUMBER}, "lr": {_NUMBER}',
        "",
    ),
    "csv_table": (
        "{n},{loss:.6f},{norm:.6f},{lr:.3e}\n",
        rf"^(\d+),{_NUMBER},{_NUMBER},{_NUMBER}",
        "step,loss,grad_norm,lr\n",
    ),
    "llmc": (
        "step {n:6}/900000 | loss {loss:.6f} ({z:+.2f}z)| norm {norm:.4f} ({z:+.2f}z)| lr {lr:.2e} "
        "| 2850.1 ms | 40.1% bf16 MFU | 180000 tok/s\n",
        rf"step\s+(\d+)/\d+ \| loss {_NUMBER} .*?norm {_NUMBER} .*?lr {_NUMBER} ",
        "",
    ),
    "torchtitan": (
        "[titan] 2026-01-05 10:00:00,123 - root - INFO - step: {n}  loss:  {loss:.4f}  grad_norm:  "
        "{norm:.4f}  memory: 40.10GiB(50.20%)  tps: 5,210  tflops: 180.1  mfu: 31.00%\n",
        rf"step:\s+(\d+)  loss:\s+{_NUMBER}  grad_norm:\s+{_NUMBER}",
        "",
    ),
    "modded_nanogpt": (
        "step:{n}/900000 train_loss:{loss:.4f} train_time:{n}ms step_avg:95.01ms\n",
        rf"step:(\d+)/\d+ train_loss:{_NUMBER}",
        "",
    ),
    "torchtune": (
        "Step {n} | loss:{loss:.6f} lr:{lr:.3e} tokens_per_second_per_gpu:310.5 "
        "grad_norm:{norm:.5f}\n",
        rf"Step (\d+) \| loss:{_NUMBER} lr:{_NUMBER} .*grad_norm:{_NUMBER}",
        "",
    ),
    "detectron2": (
        "[01/05 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: {n}  total_loss: {loss:.4f}  "
        "loss_cls: {loss:.4f}  loss_box_reg: {norm:.4f}  time: 0.4950  data_time: 0.0111  lr: "
        "{lr:.4e}  max_mem: 9000M\n",
        rf"iter: (\d+)  total_loss: {_NUMBER}  loss_cls: {_NUMBER}  loss_box_reg: {_NUMBER}  .*?"
        rf"lr: {_NUMBER}",
        "",
    ),
    "paddle": (
        "[01/05 10:00:00] ppdet.engine INFO: Epoch: [0] [{n:6}/900000] learning_rate: {lr:.6f} "
        "loss: {loss:.6f} loss_cls: {loss:.6f} eta: 0:10:00 batch_cost: 0.4950 data_cost: 0.0111 "
        "ips: 16.1600 images/s\n",
        rf"Epoch: \[(\d+)\] \[\s*(\d+)/(\d+)\] learning_rate: {_NUMBER} loss: {_NUMBER} loss_cls: "
        rf"{_NUMBER} ",
        "",
    ),
    "deepspeed": (
        "steps: {n} loss: {loss:.4f} iter time (s): 0.495 samples/sec: 64.646\n",
        rf"steps: (\d+) loss: {_NUMBER} iter time",
        "",
    ),
    "mindspore": (
        "2026-01-05 10:00:00,123 - mindformers - INFO - {{ Epoch:[  1/  2], step:[{n:6}/900000], "
        "loss: {loss:.3f}, per_step_time: 495ms, lr: {lr:.6e}, overflow cond: False, loss_scale: "
        "65536.0\n",
        rf"Epoch:\[\s*(\d+)/.*?step:\[\s*(\d+)/(\d+)\], loss: {_NUMBER}, .*?lr: {_NUMBER}, .*?"
        rf"loss_scale: {_NUMBER}",
        "",
    ),
    "keyed_text": (
        "Step [{n}/900000], Loss: {loss:.4f}, LR: {lr:.3e}\n",
        rf"Step \[(\d+)/\d+\], Loss: {_NUMBER}, LR: {_NUMBER}",
        "",
    ),
}  # fmt: skip


def lines(template: str, num_lines: int) -> Iterator[str]:
    """Lines of a healthy training, with numbers of our own."""
    noise = random.Random(0)
    for n in range(1, num_lines + 1):
        yield template.format(
            n=n,
            loss=2 + 9 / (1 + n / 1000) + noise.gauss(0, 0.05),
            norm=abs(noise.gauss(0.5, 0.1)),
            lr=3e-4 * min(1, n / 2000),
            epoch=n / 1000,
            z=noise.gauss(0, 1),
        )


def plain_pass(path: Path, pattern: str) -> list[list[float]]:
    """The loop that people write by hand."""
    search = re.compile(pattern).search
    columns: list[list[float]] = [[] for _ in range(re.compile(pattern).groups)]
    with path.open(encoding="utf-8") as file:
        for line in file:
            found = search(line)
            if found:
                for column, text in zip(columns, found.groups(), strict=True):
                    column.append(float(text))
    return columns


def write_events(path: Path, num_scalars: int) -> None:
    """Four tags a step, as torch's SummaryWriter writes them."""
    import tests.readers.samples as samples  # noqa: PLC0415

    tags = (b"train/loss", b"train/grad_norm", b"train/learning_rate", b"train/epoch")
    sums: dict[bytes, bytes] = {}
    with path.open("wb") as file:
        for place in range(num_scalars):
            step, tag = place // 4, tags[place % 4]
            scalar = samples.message((1, tag)) + b"\x15" + struct.pack("<f", step / 7)
            event = struct.pack("<Bd", 9, 1.7e9 + step)
            event += b"\x10" + varint(step) + samples.message((5, samples.message((1, scalar))))
            length = struct.pack("<Q", len(event))
            if length not in sums:
                sums[length] = samples.masked(length)
            file.write(length + sums[length] + event + samples.masked(event))


def varint(value: int) -> bytes:
    """A whole number in seven bits a byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def accumulated(path: Path) -> None:
    """The same file by TensorBoard itself."""
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    events = EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    assert events.Scalars("train/loss")


def secs(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def compare(
    name: str, ours: Callable[[], object], theirs: Callable[[], object], repeats: int
) -> dict[str, float | str]:
    """Both sides, one after the other, some times."""
    pairs = [(secs(ours), secs(theirs)) for _ in range(repeats)]
    return {
        "format": name,
        "ours_secs": round(min(one for one, _ in pairs), 3),
        "theirs_secs": round(min(two for _, two in pairs), 3),
        "ratio": round(statistics.median(one / two for one, two in pairs), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    wanted = args.formats or [name for name in FORMATS if name in members("readers")]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            if name == "tensorboard":
                continue
            template, pattern, head = FORMATS[name]
            path = Path(folder) / f"{name}.log"
            path.write_text(head + "".join(lines(template, args.lines)), encoding="utf-8")
            (run,) = read_log(path, format=name).runs
            columns = plain_pass(path, pattern)
            assert len(run.series["loss"]) == len(columns[0]) == args.lines, name
            results.append(
                compare(
                    name,
                    lambda path=path, name=name: read_log(path, format=name),
                    lambda path=path, pattern=pattern: plain_pass(path, pattern),
                    args.repeats,
                )
            )
            print(
                "{format:16} {ours_secs:8.3f} s {theirs_secs:8.3f} s {ratio:6.2f}".format(
                    **results[-1]
                )
            )
            path.unlink()
        if not args.formats or "tensorboard" in args.formats:
            path = Path(folder) / "events.out.tfevents.1700000000.host.1.0"
            write_events(path, args.lines)
            results.append(
                compare(
                    "tensorboard", lambda: read_log(path), lambda: accumulated(path), args.repeats
                )
            )
            print(
                "{format:16} {ours_secs:8.3f} s {theirs_secs:8.3f} s {ratio:6.2f}".format(
                    **results[-1]
                )
            )
    if args.json:
        found = {
            "lines": args.lines,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
            "python": platform.python_version(),
            "results": results,
        }
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
