"""Weights that many calls share. The gradients of calls of one time step become matrix products for many of them."""

from typing import Any

import torch
from torch import Tensor

from steadygrad.kernels.products import matmul

MOST_ROWS = 256
"""number of rows from which products are as fast as for more rows, so that no more rows are kept"""


class Factors:
    """A sum of products Lᵀ R whose factors (rows, …) arrive one after the other, as a few products of many rows."""

    def __init__(self) -> None:
        self.left: list[Tensor] = []
        self.right: list[Tensor] = []
        self.rows = 0
        self.sum: Tensor | None = None

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add Lᵀ R to the sum."""
        self.left.append(left)
        self.right.append(right)
        self.rows += len(left)
        if self.rows >= MOST_ROWS:
            self.multiply()

    def multiply(self) -> None:
        """Multiply the factors that have arrived."""
        left, right = torch.cat(self.left), torch.cat(self.right)
        self.sum = matmul(left.mT, right, add=self.sum)
        self.left, self.right, self.rows = [], [], 0

    def total(self) -> Tensor | None:
        """Return the sum, or None if nothing has arrived."""
        if self.rows:
            self.multiply()
        return self.sum


class Shared(torch.autograd.Function):
    """Autograd function of a weight that many calls use: the identity.

    A call of one time step has the gradient δᵀ h, a product with few rows. It hands over δ and h (`outer`) instead of
    the product. The rows of many calls are then multiplied at once.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        """Return an alias of the weight."""
        ctx.set_materialize_grads(False)
        ctx.factors = {}  # by backward pass, because passes through the same graph may be nested
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        """Return the gradient of the weight: ``gradient``, None for zero, plus the products that were handed over."""
        factors: Factors | None = ctx.factors.pop(torch._C._current_graph_task_id(), None)
        product = None if factors is None else factors.total()
        if product is None or gradient is None:
            return gradient if product is None else product
        return gradient + product


def is_shared(node: Any) -> bool:
    """Return whether a node of the graph, such as one of ``ctx.next_functions``, is that of a `Shared` weight."""
    return isinstance(node, Shared._backward_cls)


def outer(node: Any, left: Tensor, right: Tensor) -> Tensor | None:
    """Return the gradient Lᵀ R of a weight, or None if it needs none: ``node``, from which it comes, is then None.

    If the weight is `Shared`, hand the factors L and R over to its node and return None.
    """
    if node is None:
        return None
    if not is_shared(node):
        return left.mT @ right
    task = torch._C._current_graph_task_id()
    if (factors := node.factors.get(task)) is None:
        factors = node.factors[task] = Factors()
        # a pass that does not reach the weight leaves nothing behind
        torch.autograd.Variable._execution_engine.queue_callback(lambda: node.factors.pop(task, None))
    factors.add(left, right)
    return None
