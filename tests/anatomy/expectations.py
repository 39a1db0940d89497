"""What tests of anatomy share: how expectations are written, and what is always true."""

import collections

from torch import nn

from foreshock.anatomy import Anatomy, Block


def torch_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)


def block_paths(spec: str) -> list[str]:
    """`layers.0-2` as three paths."""
    stem, _, span = spec.rpartition(".")
    first, last = map(int, span.split("-"))
    return [f"{stem}.{number}".lstrip(".") for number in range(first, last + 1)]


def block(path: str, attention: str, ffn: str, norms: str) -> Block:
    def below(names: str) -> tuple[str, ...]:
        return tuple(f"{path}.{name}" for name in names.split())

    return Block(path=path, attention=below(attention), ffn=below(ffn), norms=below(norms))


def holds(model: nn.Module, found: Anatomy) -> None:
    """What is true of every anatomy."""
    paths = {path for path, _ in model.named_modules()}
    parts = [one for block in found.blocks for one in (*block.attention, *block.ffn, *block.norms)]
    assert {*found.embeddings, *parts, *(block.path for block in found.blocks)} <= paths
    assert {found.last_norm, found.head} - {None} <= paths
    assert len(parts) == len(set(parts))
    roles = collections.defaultdict(set)
    for path, _ in model.named_parameters():
        group = found.group_of(path)
        roles[group].add(found.role_of(path))
        assert found.group_of(found.plain(path)) == group
        plain = found.plain(path)
        joined = group.rpartition(".")[0] if group.split(".")[-1] in ("ffn", "attn") else group
        assert plain == group or not joined or plain.startswith(f"{joined}.")
    assert {group: its for group, its in roles.items() if len(its) > 1} == {}


def params(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())
