"""The table of causes in docs/causes.md; run as a module, it writes it anew."""

from pathlib import Path

from foreshock.catalog import members
from foreshock.core.cause import Cause

PAGE = Path(__file__).parents[2] / "docs" / "causes.md"
FIRST = "<!-- causes: written by `python -m tests.causes.documented` -->\n"
LAST = "<!-- end of causes -->\n"
HEAD = (
    "| cause | born, lead | what tells it apart | what settles it | what helps | "
    "known not to help |\n| --- | --- | --- | --- | --- | --- |\n"
)


def table() -> str:
    """One row a cause, in order of name."""
    return HEAD + "".join(_row(cause) for cause in members("causes").values())


def _row(cause: type[Cause]) -> str:
    born = ", ".join(cause.born)
    cells = [
        f"`{cause.name}`" + (", data" if cause.data_may_be_at_fault else ""),
        "; ".join(one for one in (born, cause.lead) if one),
        f"{cause.predicts}. Comes again: {cause.recurs or 'not known'}. "
        f"Against it: {cause.contradicts}",
        cause.settled_by,
        "; ".join(cause.remedies),
        "; ".join(cause.no_help),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(FIRST)
    after = rest.partition(LAST)[2]
    PAGE.write_text(before + FIRST + table() + LAST + after, encoding="utf-8")


if __name__ == "__main__":
    main()
