"""Where benchmarks keep their trials while they run, and their figures when they are done."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def folder_for(results: Path | None, figures: str | None) -> Iterator[Path]:
    """The folder of trials: as given, else beside the file of figures, else a passing one.

    Args:
        results: what `--results` gave.
        figures: what `--json` gave; None or "-" for no file.
    """
    if results is not None:
        yield results
    elif figures not in (None, "-"):
        yield Path(figures).with_suffix("")
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def tell(result: Mapping[str, Any], figures: str | None, *, allow_nan: bool = True) -> None:
    """Print figures as JSON, and keep them where `--json` said."""
    text = json.dumps(result, indent=1, allow_nan=allow_nan)
    if figures not in (None, "-"):
        path = Path(figures)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    print(text)
