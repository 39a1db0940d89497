"""MLflow's store: a database that may be hostile, and the folder of text files."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from foreshock.core.errors import LogError
from foreshock.core.log import LoggedRun
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource

SCHEMA = """
CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), status VARCHAR(20),
    start_time BIGINT, lifecycle_stage VARCHAR(20), CONSTRAINT run_pk PRIMARY KEY (run_uuid));
CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
    run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL,
    is_nan BOOLEAN DEFAULT '0' NOT NULL);
"""
LARGEST = 1.7976931348623157e308


def points(run: LoggedRun, signal: str) -> list[tuple[int, float]]:
    one = run.series[signal]
    return list(zip(one.steps.tolist(), one.values.tolist(), strict=True))


def write(path: Path, schema: str = SCHEMA) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(schema)
        for place, (run, num_steps) in enumerate((("b" * 32, 4), ("a" * 32, 6))):
            database.execute(
                "INSERT INTO runs VALUES (?, 'n', 'RUNNING', ?, 'active')", (run, place)
            )
            for step in range(num_steps):
                time = 1000 + 10 * step
                for key, value, nan in (
                    ("loss", 0.0 if step == 2 else 4.0 - step, step == 2),
                    ("grad_norm", LARGEST if step == 3 else 1.5, False),
                    ("system/cpu", 9.0, False),
                ):
                    database.execute(
                        "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
                        (key, value, time, run, step, nan),
                    )
        database.commit()
    return path


def test_runs_are_read_exactly_oldest_first(tmp_path: Path) -> None:
    log = read_log(write(tmp_path / "mlflow.db"))
    assert log.format == "mlflow"
    one, two = log.runs
    assert one.series["loss"].steps.tolist() == [0, 1, 2, 3]
    assert two.series["loss"].steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert set(one.series) == {"loss", "grad_norm"}
    assert one.series["loss"].values.tolist()[:2] == [4.0, 3.0]


def test_nan_is_stored_as_zero_and_infinity_as_the_largest_number(tmp_path: Path) -> None:
    (run, _) = read_log(write(tmp_path / "mlflow.db")).runs
    assert math.isnan(run.series["loss"].values[2])
    assert run.series["grad_norm"].values.tolist() == [1.5, 1.5, 1.5, math.inf]


def test_a_restart_keeps_the_order_of_logging(tmp_path: Path) -> None:
    path = write(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(path)) as database:
        for step in (2, 3, 4, 5, 6, 7):
            database.execute(
                "INSERT INTO metrics VALUES ('loss', 9.0, ?, ?, ?, 0)",
                (5000 + step, "a" * 32, step),
            )
        database.commit()
    (_, run) = read_log(path).runs
    assert run.restarts == ((5, 2),)
    assert points(run, "loss")[-6:] == [(step, 9.0) for step in (2, 3, 4, 5, 6, 7)]


def test_nothing_is_written_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path / "mlflow.db")
    before = path.read_bytes()
    path.chmod(0o444)
    read_log(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE other (a); CREATE VIEW metrics AS SELECT 'loss' AS key, 2.0 AS value, "
        "1 AS timestamp, 'r' AS run_uuid, 1 AS step, 0 AS is_nan;",
        "CREATE TABLE other (metrics);",
        "CREATE VIRTUAL TABLE metrics USING fts5(key, value, timestamp, run_uuid, step);",
        "CREATE TABLE metrics (a);",
    ],
)
def test_hostile_databases_end_in_one_error(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        try:
            database.executescript(schema)
        except sqlite3.OperationalError as error:  # this SQLite has no fts5
            pytest.skip(str(error))
    with pytest.raises(LogError):
        read_log(path, format="mlflow")


def test_functions_in_generated_columns_do_not_run(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE metrics (key, run_uuid, timestamp, step, is_nan, "
            "value AS (length(hex(zeroblob(1000)))));"
            "INSERT INTO metrics VALUES ('loss', 'r', 1, 1, 0);"
        )
    with pytest.raises(LogError):
        read_log(path)


def test_old_stores_have_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript("CREATE TABLE metrics (key, value, timestamp, run_uuid);")
        for i in range(100):
            database.execute("INSERT INTO metrics VALUES ('loss', ?, ?, 'r')", (9.0 - i, 100 - i))
        database.commit()
    found = read_log(path).runs[0].series["loss"]
    assert found.values.tolist() == [float(i - 90) for i in range(100)]


def test_odd_values_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(path)) as database:
        for key, value, time, step in (
            ("loss", "text", 1, 1),
            (b"\xff", 2.0, 1, 1),
            ("loss", 2.0, "when", 1),
            ("x", 2.0, 2000, -5),
            ("y" * 5000, 2.0, 2000, 5),
        ):
            database.execute(
                "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, 0)", (key, value, time, "a" * 32, step)
            )
        database.commit()
    (_, run) = read_log(path).runs
    assert run.series["loss"].steps.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_damaged_database_is_one_error(tmp_path: Path) -> None:
    path = write(tmp_path / "mlflow.db")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(LogError):
        read_log(path)


def test_the_most_valued_runs_are_chosen(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        for run in range(30):
            for step in range(run + 1):
                database.execute(
                    "INSERT INTO metrics VALUES ('loss', 1.0, ?, ?, ?, 0)",
                    (step, f"r{run:02}", step),
                )
        database.commit()
    log = read_log(path)
    assert [len(run.series["loss"]) for run in log.runs] == list(range(11, 31))
    assert any("20 runs" in note for note in log.notes)


def store(folder: Path, run: str, loss: str, **metrics: str) -> None:
    for name, text in {"loss": loss, **metrics}.items():
        path = folder / "0" / run / "metrics" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "0" / run / "meta.yaml").write_text("status: 3\n")


def test_the_folder_of_text_files(tmp_path: Path) -> None:
    folder = tmp_path / "mlruns"
    store(
        folder,
        "a" * 32,
        "1000 4.0 0\n1010 nan 1\n1020 2.0 2\n1030 broken 3\n104",
        val__loss="1020 4.5 2\n",
        system__cpu="1000 9.0 0\n",
    )
    store(folder, "b" * 32, "2000 3.0 0\n2010 2.0 1\n")
    log = read_log(folder)
    assert log.format == "mlflow"
    one, two = log.runs
    assert one.series["loss"].steps.tolist() == [0, 1, 2]
    assert math.isnan(one.series["loss"].values[1])
    assert points(one, "eval_loss") == [(2, 4.5)]
    assert points(two, "loss") == [(0, 3.0), (1, 2.0)]
    assert set(one.series) == {"loss", "eval_loss"}
    (only,) = read_log(folder / "0" / ("b" * 32)).runs
    assert points(only, "loss") == [(0, 3.0), (1, 2.0)]


def test_what_is_recognised(tmp_path: Path) -> None:
    path = write(tmp_path / "x.bin")
    assert ranking(FileSource(path).sample())[0][1].name == "mlflow"
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/loss").write_text("1 2 3\n")
    found = [reader.name for _, reader in ranking(FileSource(tmp_path).sample())]
    assert "mlflow" not in found
