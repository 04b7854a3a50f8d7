"""What one forward pass computes, as tensors: rows of several sequences behind one another."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.pool import NULL_BLOCK

_MAX_GROUPED_ROWS = 16
_MIN_FILL = 0.75
_MIN_GROUP = 8


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive tokens of one sequence."""

    token_ids: list[int]
    start: int
    """Position of the first."""
    blocks: list[int]
    """Blocks of the whole sequence, from its first token on."""

    @property
    def end(self) -> int:
        """Position behind the last."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True)
class AttentionGroup:
    """Sequences whose attention is computed together: their rows lie side by side in the batch."""

    first_row: int
    num_rows: int
    padded_rows: Tensor | None
    """Rows of the group, ``[sequences * longest]``: a shorter span repeats its first row; None when none is shorter."""
    kept_rows: Tensor | None
    """Where the group's own rows stand among the padded ones."""
    blocks: Tensor
    """``[sequences, blocks]``"""
    mask: Tensor
    """Added to scores ``[sequences, 1, longest * heads per kv head, tokens]``: zero or minus infinity."""


@dataclass(frozen=True)
class Batch:
    """Rows and where their keys and values go."""

    spans: tuple[Span, ...]
    token_ids: Tensor
    positions: Tensor
    storage_rows: Tensor
    groups: tuple[AttentionGroup, ...]

    @property
    def num_keys(self) -> tuple[int, int]:
        """Keys that are wanted by a row of attention, and keys that are read with padding; for measuring."""
        wanted = sum(span.end for span in self.spans)
        return wanted, sum(group.mask.shape[0] * group.mask.shape[-1] for group in self.groups)


def build_batch(
    spans: list[Span], block_tokens: int, heads_per_kv: int, dtype: torch.dtype, device: torch.device
) -> Batch:
    """Tensors for some spans; the rows are in the order of the batch's ``spans``, sorted so that like lies by like."""
    ordered = sorted(spans, key=lambda span: (len(span.token_ids), span.end))
    positions = [position for span in ordered for position in range(span.start, span.end)]
    rows = [
        span.blocks[position // block_tokens] * block_tokens + position % block_tokens
        for span in ordered
        for position in range(span.start, span.end)
    ]
    groups, first_row = [], 0
    for members in _grouped(ordered):
        groups.append(_group(members, first_row, block_tokens, heads_per_kv, dtype, device))
        first_row += sum(len(span.token_ids) for span in members)
    return Batch(
        spans=tuple(ordered),
        token_ids=torch.tensor([i for span in ordered for i in span.token_ids], device=device),
        positions=torch.tensor(positions, device=device),
        storage_rows=torch.tensor(rows, device=device),
        groups=tuple(groups),
    )


def _grouped(ordered: list[Span]) -> list[list[Span]]:
    """Decoding sequences together, as long as not too much of the group is padding; longer spans by themselves."""
    groups: list[list[Span]] = []
    for span in ordered:
        group = groups[-1] if groups else []
        if not group or len(span.token_ids) > _MAX_GROUPED_ROWS:
            groups.append([span])
            continue
        is_single = len(span.token_ids) == 1
        wanted = sum(member.end for member in group) + span.end
        fill = wanted / (max(span.end, *(member.end for member in group)) * (len(group) + 1))
        if is_single != (len(group[0].token_ids) == 1) or (len(group) >= _MIN_GROUP and fill < _MIN_FILL):
            groups.append([span])
        else:
            group.append(span)
    return groups


def _group(
    spans: list[Span], first_row: int, block_tokens: int, heads_per_kv: int, dtype: torch.dtype, device: torch.device
) -> AttentionGroup:
    longest = max(len(span.token_ids) for span in spans)
    counts = [-(-span.end // block_tokens) for span in spans]
    tables = [span.blocks[:n] + [NULL_BLOCK] * (max(counts) - n) for span, n in zip(spans, counts, strict=True)]
    padded, kept, offset = [], [], 0
    for index, span in enumerate(spans):
        own = list(range(offset, offset + len(span.token_ids)))
        kept += [index * longest + i for i in range(len(own))]
        padded += own + own[:1] * (longest - len(own))
        offset += len(own)
    # row i of a span sees the keys up to its own position; the rows that pad it see what its first row sees
    last_seen = torch.tensor(
        [[span.start + (i if i < len(span.token_ids) else 0) for i in range(longest)] for span in spans]
    )
    is_hidden = torch.arange(max(counts) * block_tokens) > last_seen.unsqueeze(-1)
    mask = torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, -torch.inf)
    is_padded = len(padded) > offset
    return AttentionGroup(
        first_row=first_row,
        num_rows=offset,
        padded_rows=torch.tensor(padded, device=device) if is_padded else None,
        kept_rows=torch.tensor(kept, device=device) if is_padded else None,
        blocks=torch.tensor(tables, device=device),
        mask=mask.repeat_interleave(heads_per_kv, dim=1).unsqueeze(1).to(device),
    )
