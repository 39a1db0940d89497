# ruff: noqa: E501 - lines of logs are as long as they are
"""A small log of every format, with numbers of our own: what fuzzing starts from."""

import json
import sqlite3
import struct
import tempfile
import zlib
from contextlib import closing
from pathlib import Path

_ROWS = range(1, 13)


def _losses():
    """Step, loss, gradient norm: with a NaN and an infinity among them."""
    return [
        (10 * n, "nan" if n == 7 else f"{9 / n:.4f}", "inf" if n == 8 else f"0.{n:02}5")
        for n in _ROWS
    ]


def _text(template: str, head: str = "", tail: str = "") -> bytes:
    """A line (or several) a row; `{n}` is its number, `{s}`, `{l}`, `{g}` its values."""
    rows = (template.format(n=n, s=s, l=x, g=g) for n, (s, x, g) in enumerate(_losses(), 1))
    return (head + "".join(rows) + tail).encode()


def _json_rows() -> list[dict]:
    return [
        {"step": s, "loss": float(x), "grad_norm": float(g), "epoch": s / 60}
        for s, x, g in _losses()
    ]


def _golden() -> bytes:
    def metric(place):
        values = {str(row[0]): float(row[place]) for row in _losses()}
        return {"start_step": 1, "end_step": 120, "step_interval": 10, "values": values}

    return json.dumps(
        {"lm loss": metric(1), "grad-norm": metric(2), "num-zeros": metric(2)}
    ).encode()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def message(*fields: tuple[int, bytes]) -> bytes:
    return b"".join(bytes([number << 3 | 2, len(data)]) + data for number, data in fields)


def _events() -> bytes:
    """Event files without TensorBoard: time, step, and a summary of one value."""
    out = b""
    for step, loss, norm in _losses():
        for tag, value in ((b"train/loss", loss), (b"train/grad_norm", norm)):
            scalar = message((1, tag)) + b"\x15" + struct.pack("<f", float(value))
            event = (
                struct.pack("<Bd", 9, 1.7e9)
                + bytes([16, step])
                + message((5, message((1, scalar))))
            )
            length = struct.pack("<Q", len(event))
            out += length + masked(length) + event + masked(event)
    return out


def _wandb() -> bytes:
    """W&B's file without W&B: a history record a row."""
    out = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    for step, loss, _ in _losses():
        text = {"nan": "NaN"}.get(loss, loss).encode()
        item = message((1, b"train/loss")) + b"\x82\x01" + bytes([len(text)]) + text
        record = message((2, message((1, item), (2, bytes([8, step])))))
        crc = zlib.crc32(record, zlib.crc32(b"\x01"))
        out += struct.pack("<IHB", crc, len(record), 1) + record
    return out


def _database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlflow.db"
        with closing(sqlite3.connect(path)) as database:
            database.executescript(
                "CREATE TABLE runs (run_uuid VARCHAR(32), name VARCHAR(250), status VARCHAR(20),"
                " start_time BIGINT, lifecycle_stage VARCHAR(20));"
                "CREATE TABLE metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT,"
                " run_uuid VARCHAR(32), step BIGINT, is_nan BOOLEAN);"
            )
            database.execute("INSERT INTO runs VALUES ('a', 'n', 'RUNNING', 0, 'active')")
            for step, loss, _ in _losses():
                nan = loss == "nan"
                row = ("loss", 0.0 if nan else float(loss), step, "a", step, nan)
                database.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
            database.commit()
        return path.read_bytes()


def _parquet() -> bytes | None:
    try:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        return None
    sink = pa.BufferOutputStream()
    rows = _json_rows()
    pq.write_table(pa.table({key: [row[key] for row in rows] for key in rows[0]}), sink)
    return sink.getvalue().to_pybytes()


_HF_ROW = "{{'loss': {l}, 'grad_norm': {g}, 'learning_rate': 1e-05, 'epoch': 0.{n:02}}}\n"
_OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32\n"

_TEXTS = {
    "apex": _text("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {s}.0\n"),
    "build_nanogpt": _text(
        "step {s:5} | loss: {l} | lr 1.2e-05 | norm: {g} | dt: 90.1ms | tok/sec: 180000.5\n"
    ),
    "build_nanogpt_log": _text("{s} train {l}\n{s} val {l}\n"),
    "columns": _text("{s} {l}\n"),
    "composer": _text("[batch={s}/900]:\n\t Train loss/train/total: {l}\n\t Train l2_norm/grad/global: {g}\n"),
    "csv_table": _text("{s},{l},{g}\n", head="step,loss,grad_norm\n"),
    "deepspeed": _text(
        "[2023-04-14 07:01:{n:02},100] [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped={n}, "
        "lr=[1e-05, 1e-05], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
        "epoch: 0|step: {s}|ppo_ep: 1|act_loss: {l}|cri_loss: {g}|unsuper_loss: 0.0\n",
        tail=_OVERFLOW,
    ),
    "aligned_table": _text("{n} {l} {l} {g} 00:07\n", head="epoch train_loss valid_loss accuracy time\n"),
    "cyclegan": _text(
        "(epoch: 1, iters: {s}, time: 0.312, data: 0.002) G_GAN: {l} G_L1: {g} D_real: 0.5 \n",
        head="================ Training Loss (Fri Aug  2 12:34:15 2024) ================\n",
    ),
    "darknet": _text(" {s}: {l}, {l} avg loss, 0.001000 rate, 3.5 seconds, {n} images\n"),
    "espnet": _text(
        "[host] 2023-05-01 09:30:{n:02},100 (trainer:763) INFO: 1epoch:train:{n}-{s}batch: "
        "iter_time=0.2, loss_ctc={g}, loss={l}, optim0_lr0=1.0e-05, train_time=0.4\n"
    ),
    "headed_text": _text("Epoch {n}/12\n----------\ntrain Loss: {l} Acc: 0.5\nval Loss: {l} Acc: 0.5\n\n"),
    "icefall": _text(
        "2023-05-01 09:30:{n:02},100 INFO [train.py:900] Epoch 1, batch {s}, loss[loss={l}, "
        "simple_loss={g}, over 900.00 frames. ], tot_loss[loss={l}, over 9000.0 frames. ], "
        "batch size: 9, lr: 2.2e-02, \n"
    ),
    "logger_tables": _text("------\n| loss      | {l} |\n| grad_norm | {g} |\n| step      | {s} |\n"),
    "opennmt": _text(
        "[2023-05-01 09:30:{n:02},100 INFO] Step {s}/900; acc:  41.20; ppl: 26.10; xent: {l}; "
        "lr: 1.00000; 900/900 tok/s;     4 sec\n"
    ),
    "detectron2": _text(
        "[03/05 10:00:{n:02} d2.utils.events]:  eta: 0:41:00  iter: {s}  total_loss: {l}  "
        "loss_cls: {g}  time: 0.2293  data_time: 0.0033  lr: 0.0002  max_mem: 3782M\n"
    ),
    "dllogger": _text(
        "DLL 2020-05-01 09:30:{n:02}.1 - Training Iteration: {s}  step_loss : {l}  learning_rate : 0.01 \n"
    ),
    "fairseq": _text(
        "2020-05-01 09:30:{n:02} | INFO | train_inner | epoch 003:  {n:5} / 80 loss={l}, nll_loss={l}, "
        "ppl=9.4, wps=900.5, num_updates={s}, lr=0.0001, gnorm={g}, loss_scale=64, train_wall=9\n"
    ),
    "golden_values": _golden(),
    "hf_stdout": _text("\r {n}%|█▍   | {s}/900 [03:15<10:06,  4.59s/it]\n" + _HF_ROW),
    "hf_trainer_state": json.dumps({"log_history": _json_rows(), "max_steps": 900}, indent=1).encode(),
    "idefics": _text(
        "iteration: {s:6}/9000   0% | elapsed time: 00:10:02 | per_token_loss: {l} | lr: 1.0E-06 | "
        "z_loss: 31.5 | grad_norm: {g} | \n"
    ),
    "jsonl": "".join(json.dumps(row) + "\n" for row in _json_rows()).encode(),
    "keras": _text("Epoch {n}/12\n60/60 [==========] - 3s 21ms/step - loss: {l} - val_loss: {l}\n"),
    "keyed_text": _text("Step [{s}/900], Loss: {l}, LR: 1e-4\n"),
    "lightning_csv": _text("0,{s},,{l},\n", head="epoch,step,train_loss_epoch,train_loss_step,val_loss\n"),
    "litgpt": _text(
        "Epoch 1 | iter {s} step {n} | loss train: {l}, val: n/a | iter time: 90.1 ms (step) remaining\n"
    ),
    "llama_factory": "".join(
        json.dumps({"current_steps": row["step"], "total_steps": 900, "loss": row["loss"], "lr": 1e-5,
                    "epoch": 0.1, "percentage": 1.0, "elapsed_time": "0:01:00"}) + "\n"
        for row in _json_rows()
    ).encode(),
    "llmc": _text(
        "step {s:4}/900 | loss {l} (+nanz)| norm {g} (-0.12z)| lr 1.03e-05 | 90.2 ms | 50.1% mfu | 9000 tok/s\n"
    ),
    "llmc_log": _text("s:{s} trl:{l} lr:0.000010 norm:{g}\ns:{s} tel:{l}\n"),
    "maskrcnn": _text(
        "2019-05-01 09:30:{n:02},100 maskrcnn_benchmark.trainer INFO: eta: 1:02:11  iter: {s}  "
        "loss: {l} ({l})  loss_rpn: {g} (0.4)  time: 1.6 (1.5)  lr: 0.02  max mem: 4000\n"
    ),
    "maxtext": _text(
        "completed step: {s}, seconds: 0.600, TFLOP/s/device: 180.2, Tokens/s/device: 9000.1, "
        "total_weights: 900, loss: {l}\n"
    ),
    "megatron": _text(
        " iteration {s:6}/     900 | consumed samples: {s} | lm loss: {l} | loss scale: 1.0 | "
        "grad norm: {g} |\n",
        tail=_OVERFLOW,
    ),
    "metric_logger": _text(
        "Epoch: [0]  [{s:3}/139]  eta: 0:08:12  lr: 0.0001  loss: {l} ({l})  grad_norm: {g} ({g})  "
        "time: 6.1  data: 0.1  max mem: 900\n"
    ),
    "mindspore": _text("epoch: 1 step: {s}, loss is {l}\n"),
    "mlflow": _database(),
    "mlx": _text("Iter {s}: Train loss {l}, Learning Rate 1.000e-05, It/sec 0.51, Tokens/sec 190.2\n"),
    "mmengine": _text(
        "05/02 10:00:{n:02} - mmengine - INFO - Epoch(train)   [1][{s:3}/120]  lr: 1.0e-04  "
        "eta: 0:10:00  time: 0.5  data_time: 0.01  memory: 900  loss: {l}  grad_norm: {g}\n"
    ),
    "modded_nanogpt": _text(
        "step:{s}/900 train_loss:{l} train_time:65ms step_avg:nanms\nstep:{s}/900 val_loss:{l} train_time:65ms\n"
    ),
    "nanogpt": _text(
        "iter {s}: loss {l}, time 900.00ms, mfu 15.30%\n", head="step 0: train loss 9.5, val loss 9.5\n"
    ),
    "nemo": _text(
        "Training epoch 0, iteration {s}/900 | lr: 1e-06 | global_batch_size: 8 | global_step: {s} | "
        "reduced_train_loss: {l} | train_step_timing in s: 0.5\n"
    ),
    "olmo": _text(
        "2024-05-01 09:30:{n:02}.100\thost:0\tolmo.train:868\tINFO\t[step={s}/9,000,epoch=0]\n"
        "    train/CrossEntropyLoss={l}\n    optim/total_grad_norm={g}\n"
    ),
    "paddle": _text(
        "[05/14 12:00:{n:02}] ppdet.engine INFO: Epoch: [0] [{s:3}/500] learning_rate: 0.001 loss: {l} "
        "eta: 12:23:45 batch_cost: 0.5 data_cost: 0.0003 ips: 16.0 images/s\n"
    ),
    "progress_bar": _text(
        "\rEpoch 0:  1%|█ | {s}/500 [00:07<00:51, 8.5it/s, v_num=0, train_loss={l}]", tail="\n"
    ),
    "swift": "".join(
        json.dumps({"loss": row["loss"], "grad_norm": row["grad_norm"], "epoch": 0.1,
                    "global_step/max_steps": f"{row['step']}/900", "percentage": "1%"}) + "\n"
        for row in _json_rows()
    ).encode(),
    "tensor_repr": _text("loss at batch {s} = tensor({l}, device='cuda:0', grad_fn=<AddBackward0>)\n"),
    "tensorboard": _events(),
    "tensorflow_estimator": _text("INFO:tensorflow:loss = {l}, step = {s} (18.2 sec)\n"),
    "torchtitan": _text(
        "[titan] 2025-05-01 09:30:{n:02},100 - root - INFO - step: {s:2}  loss:  {l}  grad_norm:  {g}  "
        "memory: 40.10GiB(50.20%)  tps: 5,210  tflops: 180.1  mfu: 31.00%\n"
    ),
    "torchtune": _text("Step {s} | loss:{l} lr:2e-05 tokens_per_second_per_gpu:310.5 grad_norm:{g}\n"),
    "trlx": _text(
        "[losses/total_loss: {l} | losses/policy_loss: {g}]:  12%|█▎  | {s}/600 [01:12<09:00,  1.5it/s]\n"
    ),
    "ultralytics": _text(
        "       {n}/12      5.1G      {l}      0.84      1.03         31        640: 100%|███| 9/9 [00:01<00:00]\n",
        head="      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n",
    ),
    "verl": _text("step:{s} - train/loss:{l} - train/lr(1e-3):0.012 - train/grad_norm:{g} - train/time(s):4.2\n"),
    "wandb_file": _wandb(),
    "yolact": _text("[  1] {s:7} || B: 5.0 | C: 3.9 | M: 6.1 | S: 1.5 | T: {l} || ETA: 9 days || timer: 0.3\n"),
}  # fmt: skip

_NAMES = {
    "csv_table": "metrics.csv", "lightning_csv": "metrics.csv", "jsonl": "metrics.jsonl",
    "hf_trainer_state": "trainer_state.json", "golden_values": "golden_values.json",
    "llama_factory": "trainer_log.jsonl", "swift": "logging.jsonl", "mlflow": "mlflow.db",
    "parquet": "x.parquet", "tensorboard": "events.out.tfevents.1700000000.host.1.0",
    "wandb_file": "run-abc.wandb", "llmc_log": "main.log", "build_nanogpt_log": "log.txt",
}  # fmt: skip


def samples() -> dict[str, tuple[str, bytes]]:
    """Name of a format, to the name and the bytes of a small log of it."""
    found = dict(_TEXTS)
    if (parquet := _parquet()) is not None:
        found["parquet"] = parquet
    return {name: (_NAMES.get(name, "train.log"), data) for name, data in found.items()}
