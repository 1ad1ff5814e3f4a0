"""Weights that many calls share. The gradients of calls of one time step become one matrix product for all of them."""

from typing import Any

import torch
from torch import Tensor

from steadygrad.kernels.products import matmul

Factors = tuple[list[Tensor], list[Tensor]]
"""left and right factors, (rows, …) each, of products Lᵀ R that add up to a gradient"""


class Shared(torch.autograd.Function):
    """Autograd function of a weight that many calls use: the identity.

    A call of one time step has the gradient δᵀ h, a product with few rows. It hands over δ and h (`outer`) instead of
    the product. The backward pass of this function joins the rows of all calls and multiplies once.
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
        if factors is None:
            return gradient
        left, right = (torch.cat(rows) for rows in factors)
        product = matmul(left.mT, right)
        return product if gradient is None else gradient + product


def is_shared(ctx: Any, index: int) -> bool:
    """Return, inside a backward pass, whether a tensor of a function is `Shared`: number ``index`` of its tensors."""
    return isinstance(ctx.next_functions[index][0], Shared._backward_cls)


def outer(ctx: Any, index: int, left: Tensor, right: Tensor) -> Tensor | None:
    """Return the gradient Lᵀ R of a tensor of a function, number ``index`` of its tensors, or None if it needs none.

    If the tensor is `Shared`, hand the factors L and R over to it and return None.
    """
    node = ctx.next_functions[index][0]
    if node is None:
        return None
    if not is_shared(ctx, index):
        return left.mT @ right
    task = torch._C._current_graph_task_id()
    if task not in node.factors:
        node.factors[task] = [], []
        # a pass that does not reach the weight leaves nothing behind
        torch.autograd.Variable._execution_engine.queue_callback(lambda: node.factors.pop(task, None))
    for rows, more in zip(node.factors[task], (left, right), strict=True):
        rows.append(more)
    return None
