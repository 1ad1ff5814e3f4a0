"""Streams of language models: one token a call."""

import torch
from torch import Tensor

from steadygrad.check import is_integer
from steadygrad.layers.stream import Stream


class TokenStream(Stream):
    """Runs a language model one token a call. The recurrent state is inside.

    ``logits = stream(token)`` takes an integer, or a tensor of integers (batch,), and returns the logits of the next
    token: (vocabulary,) for an integer, (batch, vocabulary) for a tensor. Memories of past states are kept from call to
    call. Everything else is as in `Stream`.
    """

    def __call__(self, token: int | Tensor, out: Tensor | None = None) -> Tensor:
        """Return the logits of the token that follows ``token``, (vocabulary,) or (batch, vocabulary).

        ``token`` is an integer for a batch of one, or a tensor of int64 or int32 (batch,). Raise ValueError for another
        shape or dtype, or for a token outside the vocabulary.
        """
        table = self._table
        assert table is not None
        if self.batch == 1 and is_integer(token):
            self._check_range(token, token)
            return super().__call__(table.select(0, token), out)
        if not isinstance(token, Tensor) or token.shape != (self.batch,):
            got = f"shape {tuple(token.shape)}" if isinstance(token, Tensor) else repr(token)
            kind = "an integer or a tensor" if self.batch == 1 else "a tensor"
            raise ValueError(f"{self._who} expects tokens, {kind} of shape ({self.batch},); got {got}")
        if token.dtype not in (torch.int64, torch.int32) or token.device != table.device:
            raise ValueError(
                f"{self._who} expects tokens of type int64 or int32 on {table.device}; "
                f"got {token.dtype} on {token.device}"
            )
        low, high = token.aminmax()
        self._check_range(int(low), int(high))
        return super().__call__(table.index_select(0, token), out)

    def _check_range(self, low: int, high: int) -> None:
        """Raise ValueError unless all tokens, from ``low`` to ``high``, are in the vocabulary."""
        assert self._table is not None
        if low < 0 or high >= len(self._table):
            raise ValueError(
                f"{self._who} expects tokens from 0 to {len(self._table) - 1}, as its vocabulary is "
                f"{len(self._table)}; got {low}" + (f" to {high}" if high != low else "")
            )
