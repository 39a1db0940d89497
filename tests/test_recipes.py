"""Recipes, and their configuration as TOML."""

from pathlib import Path
from typing import Any

import pytest

from foreshock.catalog import members
from foreshock.core.errors import ConfigError
from foreshock.core.policy import Policy
from foreshock.core.signal import Level
from foreshock.recipes import Cadence, Recipe, load, standard, watching

EXAMPLE = """
lag_steps = 2
rules = false

[policy]
confirm_steps = 2
lookahead = 2

[cadence]
memory_steps = 0

[detectors.spike]
z = 8
watches = ["loss", "loss_smoothed"]

[detectors]
median_ratio = false
nonfinite = true
"""


def test_a_file_is_read_as_its_docstring_says(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(EXAMPLE)
    recipe = load(path)
    assert (recipe.lag_steps, recipe.rules) == (2, ())
    assert recipe.policy == Policy(confirm_steps=2, lookahead=2)
    assert recipe.cadence == Cadence(memory_steps=0)
    by_name = {detector.name: detector for detector in recipe.detectors}
    assert set(by_name) == set(members("detectors")) - {"median_ratio"}
    assert by_name["spike"] == members("detectors")["spike"](z=8, watches=("loss", "loss_smoothed"))
    assert [cause.name for cause in recipe.causes] == list(members("causes"))


def test_the_example_in_the_docstring_of_load_works(tmp_path: Path) -> None:
    lines = (load.__doc__ or "").split("\n\n    Raises")[0].splitlines()[2:]
    path = tmp_path / "recipe.toml"
    path.write_text("\n".join(line.strip() for line in lines))
    recipe = load(path)
    assert recipe.policy.confirm_steps == 2
    assert {d.name: d for d in recipe.detectors}["spike"].z == 8.0  # type: ignore[attr-defined]


def test_the_standard_recipe_is_everything_with_its_defaults() -> None:
    recipe = standard()
    kinds = members("signals")
    assert [one.name for one in recipe.signals] == [
        name for name, kind in kinds.items() if kind.level is not Level.FULL
    ]
    for family in ("detectors", "causes", "rules"):
        assert [one.name for one in getattr(recipe, family)] == list(members(family))
    assert recipe == standard({}) == standard({"detectors": True, "policy": {}})
    assert (recipe.policy, recipe.cadence, recipe.lag_steps) == (Policy(), Cadence(), 1)


def test_a_level_holds_those_below_it_and_full_takes_its_own_settings() -> None:
    names = {level: [one.name for one in watching(level).signals] for level in Level}
    assert set(names[Level.MINIMAL]) < set(names[Level.STANDARD]) < set(names[Level.FULL])
    assert names[Level.FULL] == list(members("signals"))
    full = {one.name: one for one in watching("full").signals}
    assert full["attention_logits"].exact_every_steps == 50  # type: ignore[attr-defined]
    mine = standard({"level": "full", "signals": {"attention_logits": {"exact_every_steps": 7}}})
    assert {one.name: one for one in mine.signals}["attention_logits"].exact_every_steps == 7  # type: ignore[attr-defined]


def test_a_signal_beyond_the_level_joins_by_its_settings() -> None:
    minimal = standard({"level": "minimal", "signals": {"moments": True}})
    assert "moments" in [one.name for one in minimal.signals]
    assert "activations" not in [one.name for one in minimal.signals]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="minimal, standard, full"):
        watching("everything")


def test_settings_given_are_left_as_they_were() -> None:
    settings: dict[str, Any] = {"detectors": {"spike": {"z": 8.0}}, "lag_steps": 3}
    standard(settings)
    assert settings == {"detectors": {"spike": {"z": 8.0}}, "lag_steps": 3}


def test_watching_never_acts() -> None:
    recipe = watching()
    assert recipe.policy.actions == frozenset()
    assert recipe.rules == ()
    assert recipe.cadence.memory_keep == 0
    assert recipe.detectors == standard().detectors


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"detector": {}}, ["unknown setting 'detector'", "detectors"]),
        ({"detectors": {"spikes": {}}}, ["detectors has no 'spikes'", "spike"]),
        ({"detectors": {"spike": {"zed": 1}}}, ["detectors.spike", "'zed'", "onset_z"]),
        ({"detectors": {"spike": {"z": "8"}}}, ["detectors.spike: z is '8'", "float"]),
        ({"detectors": {"spike": {"z": True}}}, ["detectors.spike: z is True", "float"]),
        ({"detectors": {"spike": {"warmup_steps": 2.5}}}, ["warmup_steps is 2.5", "int"]),
        ({"detectors": {"spike": {"z": float("nan")}}}, ["spike", "z is nan"]),
        ({"detectors": {"spike": {"every_scope": 1}}}, ["every_scope is 1", "bool"]),
        ({"detectors": {"spike": 3}}, ["detectors.spike is 3", "table"]),
        ({"detectors": 3}, ["detectors is 3", "table, true or false"]),
        ({"policy": {"confirm": 1}}, ["policy", "'confirm'", "confirm_steps"]),
        ({"policy": {"confirm_steps": "2"}}, ["policy: confirm_steps is '2'", "int"]),
        ({"policy": {"confirm_steps": 0}}, ["policy.confirm_steps is 0", "at least 1"]),
        ({"policy": False}, ["policy is False", "table"]),
        ({"cadence": {"disk_steps": 0}}, ["Cadence.disk_steps is 0", "at least 1"]),
        ({"cadence": {"memory_steps": -1}}, ["Cadence.memory_steps is -1", "at least 0"]),
        ({"cadence": {"disk_steps": 2.5}}, ["cadence: disk_steps is 2.5", "int"]),
        ({"lag_steps": -1}, ["lag_steps is -1"]),
        ({"lag_steps": "1"}, ["lag_steps is 1"]),
        ({"causes": False}, ["at least one cause"]),
    ],
)
def test_what_is_not_allowed_is_refused_in_one_sentence(
    settings: dict[str, Any], says: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        standard(settings)
    told = str(caught.value)
    assert "\n" not in told
    for part in says:
        assert part in told


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.toml cannot be read: No such file"):
        load(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"cannot be read"):
        load(tmp_path)
    bad = tmp_path / "bad.toml"
    for content in (b"lag_steps = = 3", b"a = \xff"):
        bad.write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad.toml is not TOML"):
            load(bad)


def test_a_recipe_is_a_value() -> None:
    assert isinstance(standard(), Recipe)
    assert standard() == standard()
