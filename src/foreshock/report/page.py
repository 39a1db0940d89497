"""What every page shares: how it is rendered, its style, and how it is written."""

from importlib import resources
from pathlib import Path
from typing import Any, Final

from foreshock import __version__
from foreshock.core.errors import ForeshockError, MissingExtra
from foreshock.durable import RealDisk, write_file
from foreshock.report import words
from foreshock.report.clean import clean_text

_FULL_WEIGHT_NATS: Final = 4.0
"""Evidence that fills its bar: odds times 55."""


def require_packages(otherwise: str) -> None:
    """Make sure that what a page needs is installed.

    Args:
        otherwise: the option that does without it.

    Raises:
        MissingExtra: Bokeh or Jinja is not installed.
    """
    try:
        import bokeh  # noqa: F401, PLC0415
        import jinja2  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingExtra(
            f"the HTML report needs {error.name}, which is not installed: "
            f"pip install 'foreshock[report]' (or use {otherwise}, which needs nothing more)."
        ) from error


def render_page(name: str, *, clean: bool = False, **values: Any) -> str:
    """A page from its template.

    Args:
        name: of the template, in this package.
        clean: pass every string through `clean_text` on its way out.
        values: what the template names; `library`, `script` and each of `elements` are taken
            for markup, everything else is escaped.
    """
    import jinja2  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    def finalize(value: Any) -> Any:
        return clean_text(value) if type(value) is str else value

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_source),
        finalize=finalize if clean else None,
    )
    environment.filters.update(
        figure=words.figure,
        percent=words.percent,
        moment=words.moment,
        plain=words.plain,
        bar=bar,
        signed=lambda weight: f"{weight:+.1f}".replace("-", "−"),
        step=lambda step: "–" if step is None else f"{step:,}",
        counted=words.count,
    )
    values["library"], values["script"] = Markup(values["library"]), Markup(values["script"])  # noqa: S704 - Bokeh's own, and numbers
    values["elements"] = {key: Markup(one) for key, one in values["elements"].items()}  # noqa: S704
    return environment.get_template(name).render(version=__version__, **values)


def write_page(page: str, out: Path, option: str) -> None:
    """Write a page to a file, which appears whole or not at all.

    Raises:
        ForeshockError: `out` cannot be written; the message names the option to change.
    """
    disk = RealDisk()
    try:
        disk.make_dir(out.parent)
        write_file(disk, out, [page.encode("utf-8", "replace")])
    except OSError as error:
        raise ForeshockError(
            f"{out} cannot be written ({error.strerror or error}): give another file with {option}."
        ) from error


def bar(weight: float) -> str:
    """Where the bar of a weight lies in its cell, whose middle is zero, as CSS.

    >>> bar(2.0), bar(-9.0)
    ('left:50.0%;width:25.0%', 'left:0.0%;width:50.0%')
    """
    width = 50 * min(abs(weight) / _FULL_WEIGHT_NATS, 1.0)
    left = 50.0 if weight >= 0 else 50 - width
    return f"left:{left:.1f}%;width:{width:.1f}%"


def _source(name: str) -> str | None:
    place = resources.files("foreshock.report").joinpath(name)
    return place.read_text("utf-8") if place.is_file() else None
