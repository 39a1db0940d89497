"""Series names and module groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.errors import ConfigError
from foreshock.core.names import GLOBAL, STANDARD, module_group, series_name, split_series

SIGNALS = st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True)


@given(SIGNALS, st.text(min_size=1))
def test_splitting_undoes_joining(signal: str, scope: str) -> None:
    assert split_series(series_name(signal, scope)) == (signal, scope)


@pytest.mark.parametrize("name", ["", "Loss", "grad norm", "1st", "a/b", "loss\n", "é"])
def test_other_signal_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="lower_snake_case"):
        series_name(name)


def test_an_empty_scope_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty scope"):
        series_name("loss", "")


def test_the_whole_run_is_the_default() -> None:
    assert series_name("loss") == f"loss/{GLOBAL}"


def test_shared_names_are_distinct_and_have_a_unit() -> None:
    assert len({one.name for one in STANDARD}) == len(STANDARD)
    for one in STANDARD:
        assert series_name(one.name)
        assert one.unit
        assert one.meaning


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("blocks.3.attn.qkv.weight", "blocks.3.attn"),
        ("blocks.3.attn.weight", "blocks.3.attn"),
        ("blocks.3.weight", "blocks.3"),
        ("module.model.layers.11.mlp.up.weight", "module.model.layers.11.mlp"),
        ("layers.0.experts.5.up.weight", "layers.0.experts"),
        ("0.weight", "0"),
        ("0", "0"),
        ("net.0", "net"),
        ("final_norm.weight", "final_norm"),
        ("model.embed.weight", "model.embed"),
        ("scale", "scale"),
    ],
)
def test_module_groups(path: str, group: str) -> None:
    assert module_group(path) == group


@given(st.lists(st.sampled_from(["a", "blocks", "0", "12", "weight"]), min_size=1, max_size=6))
def test_a_group_holds_its_parameter(parts: list[str]) -> None:
    path = ".".join(parts)
    group = module_group(path)
    assert group
    assert path == group or path.startswith(group + ".")
    if len(parts) > 1:
        assert group != path
