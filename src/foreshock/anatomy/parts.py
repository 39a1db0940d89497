"""What is known of a model's parts, by path; no module is held."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from foreshock.anatomy.tree import WRAPPERS
from foreshock.core.names import module_group

Role = Literal["embedding", "attention", "ffn", "norm", "head", "other"]


@dataclass(frozen=True, kw_only=True)
class AttentionPart:
    """A module in which attention runs, and its shape as far as it can be told.

    Attributes:
        path: the module; the block itself where its projections stand loose in it.
        num_heads: query heads.
        num_key_value_heads: fewer than `num_heads` with grouped queries.
        head_dim: width of a query head.
    """

    path: str
    num_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None


@dataclass(frozen=True, kw_only=True)
class Block:
    """One numbered block, and the paths of the modules in it, in the model's order.

    Attributes:
        path: the block.
        attention: several with cross-attention, or where projections stand loose.
        ffn: several where its matrices stand loose.
        norms: of the width of the block, inside parts too; those of queries and keys
            belong to the attention.
    """

    path: str
    attention: tuple[str, ...] = ()
    ffn: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """The parts of one model; paths are those of its `named_modules`, wrappers included.

    Attributes:
        embeddings: of tokens, positions and kinds of token, or of patches.
        blocks: in the model's order, encoder before decoder.
        last_norm: the last norm outside the blocks that is not an embedding's; where there
            is none (post-norm blocks), the last one inside them.
        head: the module that yields logits; None where a function does, or nothing.
        attention_parts: one for each attention module, in the model's order.
    """

    embeddings: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    last_norm: str | None = None
    head: str | None = None
    attention_parts: tuple[AttentionPart, ...] = ()
    _wrappers: frozenset[str] = field(default=frozenset(), repr=False)
    _parts: Mapping[str, tuple[str, Role]] = field(default_factory=dict, repr=False)
    _tied: Mapping[str, str] = field(default_factory=dict, repr=False)
    _blocks: frozenset[str] = field(default=frozenset(), repr=False)

    def plain(self, path: str) -> str:
        """Return a module's or parameter's path without the segments of wrappers.

        Names of series are made of plain paths, and so do not change when a model is
        compiled, checkpointed, sharded, distributed or given adapters. A plain path stays.
        """
        kept: list[str] = []
        given = ""
        for name in path.split("."):
            given = f"{given}.{name}" if given else name
            if name not in WRAPPERS and given not in self._wrappers:
                kept.append(name)
        return ".".join(kept)

    def group_of(self, parameter_path: str) -> str:
        """Return the module group in which a parameter's norms are counted.

        That is the plain path of the part which holds it (`blocks.3.attn`), `<block>.ffn`
        and `<block>.attn` for matrices that stand loose in a block, and what
        `core.names.module_group` says for what belongs to no part.
        """
        return self._place_of(parameter_path)[0]

    def role_of(self, parameter_path: str) -> Role:
        """Return what a parameter is for; a tied weight belongs to the embedding."""
        return self._place_of(parameter_path)[1]

    def _place_of(self, parameter_path: str) -> tuple[str, Role]:
        plain = self.plain(parameter_path)
        plain = self._tied.get(plain, plain)
        holder = plain
        while True:
            if (found := self._parts.get(holder)) is not None:
                return found
            if holder in self._blocks:
                names = plain.removeprefix(holder).lstrip(".").split(".")
                child = names[:1] if len(names) > 1 else []
                return ".".join([*filter(None, [holder]), *child]) or plain, "other"
            if not holder:
                return module_group(plain), "other"
            holder = holder.rpartition(".")[0]
