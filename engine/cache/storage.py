"""Keys and values of one sequence, and which tokens they belong to."""

import torch
from torch import Tensor

from engine.model.config import ModelConfig


class SequenceCache:
    """Contiguous storage for the keys and values of one token sequence.

    ``token_ids`` are the tokens whose keys and values are complete in every layer; a forward pass writes behind
    them and calls ``commit`` when its last layer is done, so an interrupted pass leaves nothing visible.
    The memory is reserved at once and touched only as far as it is used.
    """

    def __init__(self, config: ModelConfig, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        self.token_ids: list[int] = []
        shape = (config.num_layers, 2, config.num_kv_heads, capacity, config.head_dim)
        self._storage = torch.empty(shape, dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved."""
        return self._storage.numel() * self._storage.element_size()

    def keep_common_prefix(self, token_ids: list[int]) -> int:
        """Forget what does not start ``token_ids``; return how many of them remain computed."""
        common = 0
        for ours, theirs in zip(self.token_ids, token_ids, strict=False):
            if ours != theirs:
                break
            common += 1
        self.truncate(common)
        return common

    def truncate(self, num_tokens: int) -> None:
        """Forget all but the first ``num_tokens``."""
        del self.token_ids[num_tokens:]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put ``[rows, kv_heads, head_dim]`` behind the committed tokens of ``layer``.

        Returns views of all keys and values up to and with them, ``[kv_heads, length, head_dim]``.
        """
        start = len(self.token_ids)
        end = start + keys.shape[0]
        stored_keys, stored_values = self._storage[layer, 0], self._storage[layer, 1]
        stored_keys[:, start:end] = keys.transpose(0, 1)
        stored_values[:, start:end] = values.transpose(0, 1)
        return stored_keys[:, :end], stored_values[:, :end]

    def commit(self, token_ids: list[int]) -> None:
        """Declare the rows that every layer has just written."""
        self.token_ids.extend(token_ids)
