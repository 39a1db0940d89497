"""Shares of a text that are not text: replacement, control and mojibake characters.

Windows of a byte stream begin and end inside characters. Decoding such a window yields up
to three U+FFFD at either end that say nothing about the data, so those are left out.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

REPLACEMENT = "\ufffd"
_BETWEEN = "\n"  # white space, and no part of mojibake
_MAX_CUT_BYTES = 3  # a UTF-8 character has at most four bytes, so a cut leaves at most three

# What UTF-8's continuation bytes 0x80 to 0xBF look like after a wrong decoding as Latin-1 or
# as Windows-1252; a lead byte becomes one of U+00C2 to U+00F4.
_TAIL = "[\u0080-\u00bf" + bytes(range(0x80, 0xA0)).decode("cp1252", "ignore") + "]"
_MOJIBAKE = re.compile(
    f"[\u00c2-\u00df]{_TAIL}|[\u00e0-\u00ef]{_TAIL}{{2}}|[\u00f0-\u00f4]{_TAIL}{{3}}"
)


def text_of(
    tokens: NDArray[np.integer] | None, text: str | None, tokens_are_bytes: bool
) -> str | None:
    """Return the text of a sample: `text` itself, else bytes decoded as UTF-8, else None.

    Undecodable bytes become U+FFFD. Token values outside 0 to 255 are special tokens of a
    byte-level model and are left out.

    >>> text_of(np.array([256, 72, 105]), None, tokens_are_bytes=True)
    'Hi'
    """
    if text is not None:
        return text
    if tokens is None or not tokens_are_bytes:
        return None
    return (
        tokens[(tokens >= 0) & (tokens < 256)].astype(np.uint8).tobytes().decode(errors="replace")
    )


def one_line(text: str, max_letters: int) -> str:
    """A text as it can be shown on one line: cut, and without what does not print.

    >>> one_line("loss\\x1b[0m\\n  nan", 9)
    'loss [0m'
    """
    text = text[:max_letters]
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(text.split())


def _without_cut_edges(text: str) -> str:
    head = text[:_MAX_CUT_BYTES].lstrip(REPLACEMENT) + text[_MAX_CUT_BYTES:]
    return head[:-_MAX_CUT_BYTES] + head[-_MAX_CUT_BYTES:].rstrip(REPLACEMENT)


def replacement_share(text: str) -> float:
    """Return the share of U+FFFD among the characters, cut edges aside; 0 if empty.

    >>> replacement_share("ab" + REPLACEMENT + "d")
    0.25
    >>> replacement_share(REPLACEMENT + "bcd")  # a window that starts inside a character
    0.0
    """
    text = _without_cut_edges(text)
    return text.count(REPLACEMENT) / len(text) if text else 0.0


def non_text_share(text: str) -> float:
    """Return the share of characters that no writing system uses; 0 if empty.

    Counted are U+FFFD (cut edges aside); C0 and C1 controls and DEL, except tab, line feed,
    vertical tab, form feed and carriage return; surrogates, private use and noncharacters;
    and mojibake: UTF-8 that was decoded as Latin-1 or Windows-1252, recognised by its exact
    lead and continuation pattern. Letters of any script count as text.

    >>> non_text_share("naïve, 世界, привет")
    0.0
    >>> non_text_share("naïve".encode().decode("latin-1"))  # naÃ¯ve: two of six
    0.3333333333333333
    """
    return float(non_text_shares([text])[0])


def non_text_shares(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return `non_text_share` of each text, `[N]`, in one pass over all of them.

    >>> non_text_shares(["a\\x00", "", "fine"]).tolist()
    [0.5, 0.0, 0.0]
    """
    cut = [_without_cut_edges(text) for text in texts]
    lengths = np.array([len(text) for text in cut], dtype=np.int64)
    starts = np.cumsum(lengths + 1) - lengths - 1
    joined = _BETWEEN.join(cut)
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    bad = (points < 32) & ((points < 9) | (points > 13))
    if joined.isascii():
        bad |= points == 127
    else:
        bad |= (points > 126) & (points < 0xA0)
        high = np.flatnonzero(points >= 0xD800)
        far = points[high]
        bad[high] = (
            (far < 0xF900)  # surrogates and private use
            | (far == 0xFFFD)
            | ((far >= 0xFDD0) & (far <= 0xFDEF))
            | ((far & 0xFFFE) == 0xFFFE)
            | (far >= 0xF0000)
        )
        for match in _MOJIBAKE.finditer(joined):
            bad[match.start() : match.end()] = True
    before = np.concatenate([[0], np.cumsum(bad)])
    return (before[starts + lengths] - before[starts]) / np.maximum(lengths, 1)
