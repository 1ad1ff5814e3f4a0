"""Layout of a batch while torch.compile or torch.export traces it: its sizes are symbols, and no value is known."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from steadygrad.kernels import native
from steadygrad.kernels.backend import choose_for
from steadygrad.kernels.plain import traced
from steadygrad.kernels.steps import Steps


class TracedSteps:
    """What `Steps` says about a batch, by tensor operations alone. Time, batch and rows may be symbolic integers.

    ``sizes`` are the batch sizes of a packed batch, a tensor (time,) of int64 on the CPU. It is None if all ``batch``
    sequences have ``time`` steps. With ``reverse`` each sequence is processed from its end to its beginning.
    """

    resets = None
    """resets inside sequences, which are not traced"""

    def __init__(self, time: int, batch: int, rows: int, sizes: Tensor | None = None, reverse: bool = False) -> None:
        self.time, self.batch, self.rows, self.sizes, self.reverse = time, batch, rows, sizes, reverse

    @property
    def reversed(self) -> "TracedSteps":
        """`TracedSteps` of the same rows, processed in the opposite direction."""
        return TracedSteps(self.time, self.batch, self.rows, self.sizes, not self.reverse)

    def last(self, states: Tensor) -> Tensor:
        """Return the final state of each sequence, (batch, hidden), from all states (rows, hidden), as `Steps.last`."""
        if self.sizes is None:
            return states.unflatten(0, (self.time, self.batch))[0 if self.reverse else -1]
        if self.reverse:
            return states[: self.batch]
        batch = torch.arange(self.batch, device="cpu")
        lengths = (self.sizes[:, None] > batch).sum(0)
        return states.index_select(0, ((self.sizes.cumsum(0) - self.sizes)[lengths - 1] + batch).to(states.device))

    def padded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows x (rows, …) as a tensor (time, batch, …) and a mask (time, batch) of the steps that exist.

        Steps after the end of a sequence have the values of its last row. The order is that of processing.
        """
        if self.sizes is None:
            padded = x.unflatten(0, (self.time, self.batch))
            there = torch.ones(self.time, self.batch, dtype=torch.bool, device=x.device)
        else:
            batch = torch.arange(self.batch, device="cpu")
            there = self.sizes[:, None] > batch
            rows = ((self.sizes.cumsum(0) - self.sizes)[:, None] + batch).where(there, 0)
            padded = x.index_select(0, rows.flatten().to(x.device)).unflatten(0, (self.time, self.batch))
            there = there.to(x.device)
        return (padded.flip(0), there.flip(0)) if self.reverse else (padded, there)

    def packed(self, x: Tensor) -> Tensor:
        """Return the rows (rows, …) of a tensor (time, batch, …) that `padded` returned, or of one like it."""
        x = (x.flip(0) if self.reverse else x).flatten(0, 1)
        if self.sizes is None:
            return x
        rows = torch.arange(self.rows, device="cpu")
        ends = self.sizes.cumsum(0)
        times = torch.searchsorted(ends, rows, right=True)
        return x.index_select(0, (times * self.batch + rows - (ends - self.sizes)[times]).to(x.device))


def padded_steps(time: int, batch: int) -> Steps:
    """Return the layout of ``batch`` sequences with ``time`` steps each: `Steps` or, while traced, `TracedSteps`.

    torch.jit.trace passes tensors as sizes. Its graph has these sizes as constants, of which torch warns.
    """
    return cast(Steps, TracedSteps(time, batch, time * batch)) if traced() else Steps.padded(int(time), int(batch))


@_disable_dynamo  # torch.compiler.disable would import torch._dynamo now and double the import time
def untraced(who: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return ``call(*arguments, **options)``, which torch.compile leaves out of its graphs.

    Raise ValueError in torch.export, in the name of ``who``: an exported graph has no such parts.
    """
    if torch.compiler.is_exporting():
        raise ValueError(f"{who} cannot be exported with this input: the shapes of its tensors depend on the data")
    return call(*arguments, **options)


def real_steps(rows: int, batch: int, sizes: Tensor | None, reverse: bool) -> Steps:
    """Return the `Steps` inside an operator, where the values are known, from what its caller passed.

    ``rows`` is the number of rows and ``batch`` that of sequences. ``sizes`` are the batch sizes of a packed batch, or
    None. Raise ValueError if the sizes do not fit the rows and the batch.
    """
    if sizes is None:
        steps = Steps.padded(rows // batch if batch else 1, batch)
    else:
        steps = Steps.packed(sizes, rows)
        if steps.batch != batch:
            raise ValueError(f"a packed batch of {steps.batch} sequences expects as many states; got {batch}")
    return steps.reversed if reverse else steps


def own_backend(x: Tensor, matrix: Tensor) -> str:
    """Return the implementation that an operator runs, "c" or "python", for rows x and a recurrent matrix.

    The reference definition is differentiated by autograd. An operator has a backward pass of its own.
    """
    return "c" if choose_for(x, matrix) == "c" else "python"


def dense(tensors: Iterable[Tensor | None]) -> Iterator[Any]:
    """Return an iterator over the tensors of an operator as a kernel reads them: contiguous, without lazy negation."""
    return (None if tensor is None else native.dense(tensor.detach()) for tensor in tensors)


def or_empty(like: Tensor, *results: Tensor | None) -> tuple[Tensor, ...]:
    """Return the results of an operator with an empty tensor in the place of None, which an operator cannot return."""
    return tuple(like.new_empty(0) if result is None else result for result in results)
