"""Optimizers and their parameter groups, chosen by what each parameter is, not by its name."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steadygrad.matrices import Matrix
from steadygrad.training.settings import Train


class TensorFlowRMSprop(Optimizer):
    """m ← α m + (1 − α) g²,  p ← p − lr g / √(m + ε),  m₀ = 1.

    TensorFlow 1's RMSProp. torch's starts at m₀ = 0 and adds ε outside the root, so its first steps are much longer.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            gradients: Any = [p.grad for p in params]
            if group["weight_decay"]:
                gradients = torch._foreach_add(gradients, params, alpha=group["weight_decay"])
            for p in params:
                if not self.state[p]:
                    self.state[p]["mean_square"] = torch.ones_like(p)
            means = [self.state[p]["mean_square"] for p in params]
            torch._foreach_mul_(means, group["alpha"])
            torch._foreach_addcmul_(means, gradients, gradients, value=1 - group["alpha"])
            roots = torch._foreach_add(means, group["eps"])
            torch._foreach_sqrt_(roots)
            torch._foreach_addcdiv_(params, gradients, roots, value=-group["lr"])
        return loss


def make_optimizer(model: nn.Module, train: Train) -> Optimizer:
    groups = parameter_groups(model, train)
    match train.optimizer:
        case "adam":
            return torch.optim.Adam(groups, lr=train.lr, betas=(0.9, train.smoothing or 0.999))
        case "rmsprop":
            return torch.optim.RMSprop(groups, lr=train.lr, alpha=train.smoothing or 0.99)
        case "rmsprop-tf":
            return TensorFlowRMSprop(groups, lr=train.lr, alpha=train.smoothing or 0.9)
        case "sgd":
            return torch.optim.SGD(groups, lr=train.lr)
    raise ValueError(f"no optimizer {train.optimizer!r}")


GROUPS = {"skew": "constrained", "reflector": "constrained", "transient": "transient"}
"""what free tensors of these kinds are trained with; the size of the first two means something else than a weight's"""


def parameter_groups(model: nn.Module, train: Train) -> list[dict[str, Any]]:
    """Skew parts and reflectors at ``lr_constrained``, transients with their own decay, and the rest, angles too."""
    groups: dict[Tensor, str] = {}
    for module in model.modules():
        if isinstance(module, Matrix):
            groups |= {free: GROUPS.get(kind, "other") for free, kind in zip(module.free, module.kinds, strict=True)}
    own = {
        "constrained": {"lr": train.lr if train.lr_constrained is None else train.lr_constrained, "weight_decay": 0.0},
        "transient": {"weight_decay": train.decay_transients},
        "other": {"weight_decay": train.weight_decay},
    }
    members: dict[str, list[Tensor]] = {group: [] for group in own}
    for parameter in model.parameters():
        members[groups.get(parameter, "other")].append(parameter)
    return [{"params": params, **own[group]} for group, params in members.items() if params]


class Schedule:
    """What becomes of every learning rate: less by ``lr_factor`` when its time has come, or along a cosine."""

    def __init__(self, optimizer: Optimizer, train: Train) -> None:
        self.optimizer, self.train = optimizer, train
        self.start = [group["lr"] for group in optimizer.param_groups]
        self.cuts = 0
        """how often it was less by ``lr_factor``"""

    def after_update(self, step: int) -> None:
        if self.train.schedule == "step" and step % self.train.lr_every == 0:
            self.cut(step // self.train.lr_every)
        if self.train.schedule == "cosine":
            self.scale((1 + math.cos(math.pi * step / self.train.steps)) / 2)

    def take_up(self, step: int, cuts: int) -> None:
        """As it was after this update."""
        self.cut(cuts)
        self.after_update(step)

    def after_evaluation(self, improved: bool) -> None:
        if self.train.schedule == "plateau" and not improved:
            self.cut(self.cuts + 1)

    def cut(self, cuts: int) -> None:
        self.cuts = cuts
        self.scale(self.train.lr_factor**cuts)

    def scale(self, factor: float) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.start, strict=True):
            group["lr"] = lr * factor
