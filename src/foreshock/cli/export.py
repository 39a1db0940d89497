"""`foreshock export`: readings as a table for other tools."""

import csv
import io
import json as json_format
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from foreshock.core.errors import ConfigError

if TYPE_CHECKING:
    from foreshock.run_data import RunReadings

_FORMATS: Final = (".parquet", ".csv", ".jsonl")
_STEPS: Final = re.compile(r"(\d{0,15}):(\d{0,15})", re.ASCII)
_LONG: Final = ("attempt", "step", "signal", "scope", "value")


def command(  # noqa: PLR0917 - the options of a command line
    run_dir: Annotated[Path, typer.Argument(help="The run directory.")],
    to: Annotated[Path, typer.Option(help="Where to: FILE.parquet, .csv or .jsonl.")],
    series: Annotated[
        list[str] | None,
        typer.Option(help="A name or pattern such as 'grad_norm/*'; all series by default."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="FIRST:LAST, both included; either may be left out.")
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(help="One attempt, undone steps too; by default the run as it ended.", min=1),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="A row a reading: attempt, step, signal, scope, value.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> None:
    """Write readings into one file: a column a series, or a row a reading.

    Works while the run goes on. The file appears whole, in place of one of that name. Where
    nothing was measured, a Parquet value is null, a CSV cell empty, a JSON field missing.
    """
    from foreshock.durable import REAL_DISK, write_file  # noqa: PLC0415 - starts quickly
    from foreshock.run_data import open as open_run  # noqa: PLC0415

    kind = to.suffix.lower()
    if kind not in _FORMATS:
        raise ConfigError(f"--to {to} ends in {kind!r}: it must be one of {', '.join(_FORMATS)}")
    if not to.parent.is_dir():
        raise ConfigError(f"--to {to}: there is no directory {to.parent}")
    limits = _limits(steps)
    written: dict[str, Any] = {"num_steps": 0, "num_values": 0, "steps": None}
    with open_run(run_dir) as data:
        chosen = data.select(series, attempt)
        blocks = _counted(data.blocks(chosen, limits, attempt), written)
        if kind == ".parquet":
            chunks = _parquet(blocks, chosen, long=long)
        elif kind == ".csv":
            chunks = _csv(blocks, chosen, long=long)
        else:
            chunks = _jsonl(blocks, long=long)
        write_file(REAL_DISK, to, chunks)
    summary = {"path": str(to), "num_series": len(chosen), **written, "bytes": to.stat().st_size}
    if as_json:
        print(json_format.dumps(summary))
        return
    span = "no steps" if written["steps"] is None else "steps {} to {}".format(*written["steps"])
    print(f"{to}: {len(chosen)} series, {span}, {written['num_values']:,} readings")


def _limits(steps: str | None) -> tuple[int | None, int | None]:
    if steps is None:
        return None, None
    match = _STEPS.fullmatch(steps)
    if match is None:
        raise ConfigError(f"--steps {steps!r:.80} is not of the form FIRST:LAST, as in 100:200")
    first, last = (int(one) if one else None for one in match.groups())
    if first is not None and last is not None and first > last:
        raise ConfigError(f"--steps {steps}: the first step is after the last")
    return first, last


def _counted(blocks: "Iterator[RunReadings]", written: dict[str, Any]) -> "Iterator[RunReadings]":
    from foreshock.core.reading import is_absent  # noqa: PLC0415

    for block in blocks:
        written["num_steps"] += len(block)
        written["num_values"] += int((~is_absent(block.values)).sum())
        first, last = int(block.steps.min()), int(block.steps.max())
        before = written["steps"] or (first, last)
        written["steps"] = (min(before[0], first), max(before[1], last))
        yield block


def _parquet(
    blocks: "Iterator[RunReadings]", series: tuple[str, ...], *, long: bool
) -> Iterator[bytes]:
    from foreshock.readings_parquet import encode_tables, require_pyarrow  # noqa: PLC0415

    require_pyarrow()
    import pyarrow as pa  # noqa: PLC0415

    if long:
        fields = [pa.int64(), pa.int64(), pa.string(), pa.string(), pa.float32()]
        schema = pa.schema(list(zip(_LONG, fields, strict=True)))
        tables = (block.to_arrow(long=True).cast(schema) for block in blocks)
        return encode_tables(tables, schema, ["value"], texts=["signal", "scope"])
    schema = pa.schema([("step", pa.int64()), *((name, pa.float32()) for name in series)])
    return encode_tables((block.to_arrow() for block in blocks), schema, series)


def _csv(
    blocks: "Iterator[RunReadings]", series: tuple[str, ...], *, long: bool
) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_LONG if long else ("step", *series))
    for block in blocks:
        for step, attempt, values in _rows(block):
            if long:
                writer.writerows(
                    (attempt, step, *_split(name), value)
                    for name, value in zip(block.series, values, strict=True)
                    if value != ""
                )
            else:
                writer.writerow((step, *values))
            if text.tell() > 1 << 20:
                yield text.getvalue().encode()
                text.seek(0)
                text.truncate()
    yield text.getvalue().encode()


def _jsonl(blocks: "Iterator[RunReadings]", *, long: bool) -> Iterator[bytes]:
    for block in blocks:
        names = [json_format.dumps(name) for name in block.series]
        parts = [tuple(map(json_format.dumps, _split(name))) for name in block.series]
        for step, attempt, values in _rows(block):
            told = [_number(value) for value in values]
            if long:
                lines = (
                    f'{{"attempt":{attempt},"step":{step},"signal":{signal},"scope":{scope},'
                    f'"value":{value}}}\n'
                    for (signal, scope), value in zip(parts, told, strict=True)
                    if value
                )
                yield "".join(lines).encode()
            else:
                pairs = zip(names, told, strict=True)
                fields = "".join(f",{name}:{value}" for name, value in pairs if value)
                yield f'{{"step":{step},"attempt":{attempt}{fields}}}\n'.encode()


def _number(text: str) -> str:
    return f'"{text}"' if text in ("NaN", "Infinity", "-Infinity") else text


def _split(series: str) -> tuple[str, str]:
    from foreshock.core.names import split_series  # noqa: PLC0415

    return split_series(series)


def _rows(block: "RunReadings") -> Iterator[tuple[int, int, list[str]]]:
    """Step, attempt and values as text: the shortest that gives the same float32."""
    from foreshock.core.reading import is_absent  # noqa: PLC0415

    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    for step, attempt, row in zip(
        block.steps.tolist(), block.attempts.tolist(), block.values, strict=True
    ):
        texts = [str(value) for value in row]
        gone = is_absent(row).tolist()
        yield (
            step,
            attempt,
            ["" if no else names.get(text, text) for text, no in zip(texts, gone, strict=True)],
        )
