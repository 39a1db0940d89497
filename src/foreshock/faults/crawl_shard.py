"""A shard of a web crawl whose extraction broke."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.core.fault import DataFault

Window = NDArray[np.uint8]  # [L]
Damage = Callable[[Window, np.random.Generator], Window]

# Cyrillic, Greek, Arabic, Devanagari, Hiragana, Han: first letter, and how many to draw from.
SCRIPTS = ((0x410, 64), (0x3B1, 25), (0x627, 20), (0x905, 53), (0x3041, 83), (0x4E00, 2048))
WORDS = ("home", "login", "shop", "news", "cart", "about", "terms", "cookies", "share", "next")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()  # EF BF BD


@final
@dataclass(frozen=True, kw_only=True)
class CrawlShard(DataFault):
    """Replace windows of text by template repetition and by wrongly decoded bytes.

    A share `intensity` of the windows is damaged, each of them throughout, because a broken
    document is broken from end to end. With probability `repetition` a damaged window repeats,
    else it is mis-decoded; which kind is drawn evenly:

    - repeats: a pattern of 1 to 13 bytes, over and over; or the navigation list of one of
      `num_sites` sites, over and over, in which only a counter moves.
    - mis-decoded: UTF-8 of another script read as Latin-1, twice; the clean text with runs of
      bytes turned into U+FFFD; an image read as text, in runs of NUL, of FF and of noise.

    Args:
        intensity: probability that a window is damaged, 0 to 1. Raising it moves loss and
            gradient further; lowering it hides the fault among clean windows.
        repetition: probability that a damaged window repeats, 0 to 1. Raising it makes the
            shard easier: repetition is learned within steps, and its loss then *falls*.
        num_sites: how many templates the shard holds; fewer are learned faster.

    Raises:
        ConfigError: an argument is out of its range.

    Example:
        >>> clean = np.full((3, 36), ord("a"), dtype=np.uint8)
        >>> shard = CrawlShard(intensity=0.5, repetition=1.0)
        >>> for window in shard.poison(clean, np.random.default_rng(4)):
        ...     print(window.tobytes().decode())
        @WxG2%cI2/FN@WxG2%cI2/FN@WxG2%cI2/FN
        ="/shop?p=534">shop</a></li><li><a h
        aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

    Measured on the lab GPT, three seeds, in a stage of 25 batches: held-out loss is more than
    0.1 too high in no step at intensity 0.25, for 12 to 24 at 0.5, for 39 to 45 at 1.

    Reference: patterns of 1 to 13 units that repeat, OLMo et al. (2025), "2 OLMo 2 Furious",
    https://arxiv.org/abs/2501.00656. The other kinds and the even mixture have no source: our
    choice, because none publishes how such shards are made up.
    """

    name: ClassVar[str] = "crawl_shard"
    cause: ClassVar[str] = "data_batch"

    intensity: float = 1.0
    repetition: float = 0.5
    num_sites: int = 4

    def __post_init__(self) -> None:
        self.require_share("intensity", "repetition")
        if self.num_sites < 1:
            raise ConfigError(f"CrawlShard.num_sites is {self.num_sites}; it must be >= 1.")

    def poison(self, windows: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        sites = [rng.permutation(WORDS)[:6].tolist() for _ in range(self.num_sites)]
        repeats: tuple[Damage, ...] = (_pattern, partial(_navigation, sites))
        misdecoded: tuple[Damage, ...] = (_mojibake, _replaced, _image)
        poisoned = windows.copy()
        for index in np.flatnonzero(rng.random(len(windows)) < self.intensity):
            kinds = repeats if rng.random() < self.repetition else misdecoded
            damage = kinds[rng.integers(len(kinds))]
            poisoned[index] = damage(windows[index], rng)
        return poisoned


def _pattern(window: Window, rng: np.random.Generator) -> Window:
    """One n-gram of printable bytes, 1 <= n <= 13, over and over."""
    pattern = rng.integers(0x20, 0x7F, size=rng.integers(1, 14), dtype=np.uint8)
    return np.resize(pattern, window.shape)


def _navigation(sites: list[list[str]], window: Window, rng: np.random.Generator) -> Window:
    """The list of links of one site, page after page, cut at a random place."""
    words = sites[rng.integers(len(sites))]
    page = int(rng.integers(1, 1000))
    text, start = "", int(rng.integers(256))  # a page is about 230 bytes long
    while len(text) < start + len(window):
        links = "".join(f'<li><a href="/{word}?p={page}">{word}</a></li>' for word in words)
        text, page = f'{text}<ul class="nav">{links}</ul>', page + 1
    return _bytes(text.encode()[start : start + len(window)])


def _mojibake(window: Window, rng: np.random.Generator) -> Window:
    """Words of one script, written as UTF-8 and read as Latin-1, twice."""
    first, num_letters = SCRIPTS[rng.integers(len(SCRIPTS))]
    letters = first + rng.integers(num_letters, size=len(window))
    letters[rng.random(len(window)) < 1 / 7] = ord(" ")
    once = "".join(map(chr, letters)).encode().decode("latin-1")
    twice = once.encode().decode("latin-1").encode()
    return _bytes(twice[: len(window)])


def _replaced(window: Window, rng: np.random.Generator) -> Window:
    """The clean text, in which runs of bytes became U+FFFD: half of it or more is lost."""
    pieces: list[bytes] = []
    at = 0
    while sum(map(len, pieces)) < len(window):
        keep, lost = rng.integers(0, 6), rng.integers(1, 8)
        pieces += [window[at : at + keep].tobytes(), REPLACEMENT * int(lost)]
        at += keep
    return _bytes(b"".join(pieces)[: len(window)])


def _image(window: Window, rng: np.random.Generator) -> Window:
    """Compressed pixels: noise, broken by runs of NUL and of FF."""
    image = rng.integers(256, size=len(window), dtype=np.uint8)
    at = 0
    while at < len(window):
        run = int(rng.integers(2, 17))
        if rng.random() < 0.4:
            image[at : at + run] = rng.choice((0x00, 0xFF))
        at += run
    return image


def _bytes(text: bytes) -> Window:
    return np.frombuffer(text, dtype=np.uint8)
