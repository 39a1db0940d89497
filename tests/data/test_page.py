"""The code of docs/data.md runs as it stands there."""

import re
from pathlib import Path

import foreshock
from foreshock.data.journalled import KINDS
from foreshock.data.reflow import OUTCOMES
from foreshock.data.requests import MAX_AT_ONCE, MAX_BYTES, Request
from tests.data.test_loader import Counting

DOCS = Path(__file__).parents[2] / "docs"


def test_the_code_of_the_page() -> None:
    page = (DOCS / "data.md").read_text()
    stream, loader, at_random = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    web = [{"text": "a", "doc_id": f"d{n}"} for n in range(300)]
    names = {"foreshock": foreshock, "web": web, "code": web[:], "loader": Counting()}
    exec(stream, names)
    assert len(names["stream"].next_batch().ids) == 64
    exec(loader, names)
    assert names["batches"].next_batch().positions == (0,)
    exec(at_random, names | {"get_batch": [1].index}, drawing := {})
    assert callable(drawing["Batches"]().state_dict)
    assert all(f"| `{outcome}` |" in page for outcome in OUTCOMES)


def test_the_records_and_requests_are_described() -> None:
    page = (DOCS / "run-directory.md").read_text()
    assert {kind for kind in KINDS if f"`{kind}`" not in page} == set()
    shown = re.search(r'\{"request":"0123.*?"crc"', page)
    assert shown is not None
    one = Request(
        request="0123456789abcdef",
        command="reflow",
        entry_id="plan3/1",
        every_samples=1280,
        watch_steps=20,
    )
    assert one.encode().decode().startswith(shown[0])
    assert MAX_AT_ONCE == 64 and f"at most {MAX_AT_ONCE}" in page
    assert MAX_BYTES == 1 << 20 and "over 1 MiB" in page
