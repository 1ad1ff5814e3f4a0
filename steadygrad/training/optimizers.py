"""Optimizers and their parameter groups, chosen by the kind of each parameter, not by its name."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from steadygrad.layers.groups import Group, parameter_groups
from steadygrad.training import light
from steadygrad.training.options import OPTIMIZERS, Train


class TensorFlowRMSprop(light.Light):
    """m ← α m + (1 − α) g²,  p ← p − lr g / √(m + ε),  m₀ = ``start`` (default 1).

    p is a parameter, g its gradient plus ``weight_decay`` p, m the mean square of g, α ``alpha`` and ε ``eps``. This is
    TensorFlow 1's RMSProp. RMSprop of torch starts at m₀ = 0 and adds ε outside the square root, so its first updates
    are much larger.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        start: float = 1.0,
    ) -> None:
        own = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "start": start}
        super().__init__(params, own)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters once. Return the loss of ``closure``, if given."""
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
                    self.state[p]["mean_square"] = torch.full_like(p, group["start"])
            means = [self.state[p]["mean_square"] for p in params]
            torch._foreach_mul_(means, group["alpha"])
            torch._foreach_addcmul_(means, gradients, gradients, value=1 - group["alpha"])
            roots = torch._foreach_add(means, group["eps"])
            torch._foreach_sqrt_(roots)
            torch._foreach_addcdiv_(params, gradients, roots, value=-group["lr"])
        return loss


class JointOptimizer(light.Light):
    """Steps several optimizers as one, each on its own parameter groups.

    The parts share ``param_groups`` and ``state`` with the joint optimizer. A schedule, ``zero_grad`` and a checkpoint
    therefore treat the joint optimizer as a single one.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        for part in parts:
            self.state.update(part.state)
        self._share()

    def _share(self) -> None:
        """Let the part optimizers use the groups and the state of this optimizer."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = list(islice(groups, len(part.param_groups)))
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of all part optimizers."""
        super().load_state_dict(state_dict)
        self._share()  # loading replaces the groups and the state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters of all part optimizers once. Return the loss of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss


def make_optimizer(model: nn.Module, train: Train) -> Optimizer:
    """Return the optimizer of a model: a `JointOptimizer` if constrained parameters use another optimizer."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for group in train_groups(model, train):
        kind = group.pop("optimizer")
        by_kind.setdefault(kind, []).append(group)
    parts = [of_kind(kind, groups, train) for kind, groups in by_kind.items()]
    return parts[0] if len(parts) == 1 else JointOptimizer(parts)


def of_kind(kind: str, groups: list[dict[str, Any]], train: Train) -> Optimizer:
    """Return an optimizer of the named kind, such as adam, for these parameter groups.

    The kinds are those in `OPTIMIZERS`. Raise ValueError for any other name.
    """
    match kind:
        case "adam":
            betas = (0.9 if train.beta1 is None else train.beta1, train.smoothing or 0.999)
            return light.Adam(groups, lr=train.lr, betas=betas)
        case "adagrad":
            return light.Adagrad(groups, lr=train.lr)
        case "rmsprop":
            return light.RMSprop(groups, lr=train.lr, alpha=train.smoothing or 0.99)
        case "rmsprop-tf":
            return TensorFlowRMSprop(groups, lr=train.lr, alpha=train.smoothing or 0.9)
        case "rmsprop-theano":  # ε far below any mean square, so that a parameter without gradients stays finite
            return TensorFlowRMSprop(groups, lr=train.lr, alpha=train.smoothing or 0.9, eps=1e-30, start=1e-3)
        case "sgd":
            return light.SGD(groups, lr=train.lr)
    raise ValueError(f"no optimizer {kind!r}; known: {', '.join(OPTIMIZERS)}")


def train_groups(model: nn.Module, train: Train) -> list[Group]:
    """Return the parameter groups of a model with the options of ``train``, as a list of dicts.

    They are those of `steadygrad.parameter_groups`, with one more key: ``optimizer``, the name of an optimizer in
    `OPTIMIZERS`, which `make_optimizer` removes. Skew matrices and reflection vectors, from which orthogonal matrices
    are computed, have ``lr_constrained`` and ``optimizer_constrained``. Transients, the part T of nnRNN's matrix
    P (Λ + T) Pᵀ, have ``decay_transients``. Free matrices and the readout have groups of their own if
    ``decay_matrices`` and ``decay_readout`` are set, which are added to their weight decay. Raise ValueError if
    ``decay_readout`` is set and the model has no linear ``readout``.
    """
    groups: dict[str, dict[str, Any]] = {
        "constrained": {"optimizer": train.optimizer_constrained or train.optimizer},
        "transient": {"weight_decay": train.decay_transients},
    }
    if train.decay_matrices:
        groups["matrix"] = {"weight_decay": train.weight_decay + train.decay_matrices}
    if train.decay_readout:
        if not isinstance(getattr(model, "readout", None), nn.Linear):
            raise ValueError(f"decay_readout expects a model with a linear readout; got {type(model).__name__}")
        groups["readout.weight"] = {"weight_decay": train.weight_decay + train.decay_readout}
    own = {"optimizer": train.optimizer, "weight_decay": train.weight_decay}
    return parameter_groups(model, train.lr, train.lr_constrained, groups=groups, **own)


class Schedule:
    """Learning-rate schedule of an optimizer, by ``train.schedule``: constant, step, plateau or cosine.

    Learning rates are multiplied by ``lr_factor`` every ``lr_every`` updates (step) or after each evaluation without
    improvement (plateau), or follow half a cosine to 0.
    """

    def __init__(self, optimizer: Optimizer, train: Train) -> None:
        self.optimizer, self.train = optimizer, train
        self.start = [group["lr"] for group in optimizer.param_groups]
        self.cuts = 0
        """how often the learning rates have been multiplied by ``lr_factor``"""

    def after_update(self, step: int) -> None:
        """Set the learning rates after update ``step``, for the schedules step and cosine."""
        if self.train.schedule == "step" and step % self.train.lr_every == 0:
            self.cut(step // self.train.lr_every)
        if self.train.schedule == "cosine":
            self.scale((1 + math.cos(math.pi * step / self.train.steps)) / 2)

    def take_up(self, step: int, cuts: int) -> None:
        """Restore the learning rates as they were after update ``step`` and ``cuts`` reductions by ``lr_factor``."""
        self.cut(cuts)
        self.after_update(step)

    def after_evaluation(self, improved: bool) -> None:
        """Reduce the learning rates by ``lr_factor`` if the schedule is plateau and the loss has not improved."""
        if self.train.schedule == "plateau" and not improved:
            self.cut(self.cuts + 1)

    def cut(self, cuts: int) -> None:
        """Set the learning rates to their initial values times ``lr_factor`` to the power of ``cuts``."""
        self.cuts = cuts
        self.scale(self.train.lr_factor**cuts)

    def scale(self, factor: float) -> None:
        """Set the learning rates to their initial values times ``factor``."""
        for group, lr in zip(self.optimizer.param_groups, self.start, strict=True):
            group["lr"] = lr * factor
