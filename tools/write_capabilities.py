"""Writes the capability table of `docs/integrations.md`: `python -m tools.write_capabilities`."""

from pathlib import Path

from foreshock.capability_tables import as_markdown, capability_tables

PAGE = Path(__file__).parents[1] / "docs/integrations.md"
BEGIN = "<!-- capabilities: written by tools/write_capabilities.py -->\n"
END = "<!-- capabilities: end -->\n"


def written(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{as_markdown(capability_tables())}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
