"""Reads a page as a browser would, as far as tests ask."""

from html.parser import HTMLParser

EVIL = (
    "</script><script>alert('x')</script><img src=http://evil.example/x onerror=\"y\">&'\"☃\ud800"
)


class Page(HTMLParser):
    """Collects every tag with its attributes, and the text outside scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._skip = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skip = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skip = False

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.text += data


def assert_loads_nothing(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    policies = [at["content"] for tag, at in page.tags if "http-equiv" in at and tag == "meta"]
    assert policies
    assert "default-src 'none'" in str(policies[0])
