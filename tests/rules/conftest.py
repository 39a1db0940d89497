"""Windows of real text of many kinds, which no rule may reject by default."""

import json
import sysconfig
from pathlib import Path

import pytest

PROSE = {
    "russian": "Все счастливые семьи похожи друг на друга, каждая несчастливая по-своему. "
    "Все смешалось в доме Облонских: жена узнала, что муж был в связи с бывшею гувернанткой. ",
    "chinese": "话说天下大势，分久必合，合久必分。周末七国分争，并入于秦。及秦灭之后，楚、汉分争，"
    "又并入于汉。汉朝自高祖斩白蛇而起义，一统天下，后来光武中兴，传至献帝，遂分为三国。",
    "french": "Longtemps, je me suis couché de bonne heure. Parfois, à peine ma bougie "
    "éteinte, mes yeux se fermaient si vite que je n’avais pas le temps de me dire : « Je "
    "m’endors. » Et, une demi-heure après, la pensée qu’il était temps m’éveillait… ",
    "arabic": "كان يا ما كان في قديم الزمان وسالف العصر والأوان ملك من ملوك ساسان بجزائر الهند. ",
    "emoji": "Great run today 🏃‍♀️🎉 5 km in 24′ — new record!! 😀👍🏽 See you → tomorrow ☀️ at 7½. ",
}
MARKDOWN = "| step | loss | grad norm |\n| ---: | ---: | :---: |\n" + "".join(
    f"| {1000 + 7 * i} | {3 - i / 99:.3f} | {i * 37 % 101 / 100} |\n" for i in range(200)
)
WINDOWS = (128, 256, 512, 1024)


def _python_source():
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return b"".join(path.read_bytes() for path in files[::4])


def _long(text):
    return (text * 40).encode()


@pytest.fixture(scope="session")
def real_windows():
    """By kind, windows of 128 to 1024 bytes, cut without regard to characters."""
    variables = json.dumps(sysconfig.get_config_vars(), indent=2, default=str)
    kinds = {
        "python": _python_source(),
        "json": variables.encode(),
        "markdown": MARKDOWN.encode(),
        **{name: _long(text) for name, text in PROSE.items()},
    }
    return {
        kind: [
            data[start : start + size]
            for size in WINDOWS
            for start in range(0, len(data) - size + 1, size)
        ]
        for kind, data in kinds.items()
    }


@pytest.fixture(scope="session")
def rejected_share(real_windows):
    """A function from a rule on bytes to the share of windows it rejects, by kind."""
    import numpy as np  # noqa: PLC0415

    def measure(rule):
        return {
            kind: np.mean(
                [rule.judge(np.frombuffer(w, np.uint8), None) is not None for w in windows]
            )
            for kind, windows in real_windows.items()
        }

    return measure
