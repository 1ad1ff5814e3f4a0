"""Parameter groups for optimizers, by the kind of each parameter."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from steadygrad.check import is_number
from steadygrad.layers.cell import Cell
from steadygrad.matrices import Matrix
from steadygrad.matrices.parameters import CONSTRAINED, free_kinds

Group = dict[str, Any]
"""parameter group of a torch optimizer: ``params``, ``lr``, ``weight_decay``, ``name`` and further options"""

KINDS = ("skew", "reflector", "angle", "modulus", "transient", "singular", "coupling", "matrix")
"""kinds of parameters that `parameter_kinds` finds"""


def parameter_kinds(model: nn.Module) -> dict[Tensor, str]:
    """Return the kind of each parameter that has one, such as "skew" or "matrix", as a dict by parameter.

    Free tensors have a kind, those of a `Matrix` and those of a map that is registered by
    `torch.nn.utils.parametrize`. So have recurrent matrices without a constraint.
    """
    kinds: dict[Tensor, str] = {}
    for module in model.modules():
        if isinstance(module, Matrix):
            kinds |= dict(zip(module.free, module.kinds, strict=True))
        elif isinstance(module, Cell):
            kinds |= module.kinds()
        elif isinstance(module, ParametrizationList) and hasattr(module[0], "kinds"):
            originals = [p for name, p in module.named_parameters(recurse=False) if name.startswith("original")]
            kinds |= dict(zip(originals, free_kinds(module[0], len(originals)), strict=True))
    return kinds


def parameter_groups(
    model: nn.Module,
    lr: float,
    lr_constrained: float | None = None,
    *,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> list[Group]:
    """Return the parameter groups of a model for a torch optimizer: dicts of ``params``, ``lr``, ``name`` and options.

    The model is any module. Skew parts and reflectors of its constrained matrices are in the group "constrained" with
    the rate ``lr_constrained``, by default ``lr``, and without weight decay: their size has another meaning than the
    size of a weight. All other parameters are in the group "other" with the rate ``lr``. ``options`` are further
    options of all groups, such as ``weight_decay``. Groups without parameters are left out.

    ``groups`` maps names of further groups to the options in which they differ. A name is a kind, such as "transient"
    or "matrix", or the name of a parameter. The options of "constrained" and "other" may be there, too.

    Raise ValueError for a rate below 0, and for a group whose name is neither a kind nor the name of a parameter.
    """
    rates = {"lr": lr, "lr_constrained": lr if lr_constrained is None else lr_constrained}
    for name, rate in rates.items():
        if not is_number(rate, 0):
            raise ValueError(f"parameter_groups expects {name} to be a number of at least 0; got {rate!r}")
    kinds = parameter_kinds(model)
    names: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):  # a shared parameter has several names
        names.setdefault(parameter, []).append(name)
    known = {*KINDS, *kinds.values(), "constrained", "other"}.union(*names.values())
    own: dict[str, dict[str, Any]] = {"constrained": {"lr": rates["lr_constrained"], "weight_decay": 0.0}}
    for name, different in (groups or {}).items():
        if name not in known:
            raise ValueError(
                f"parameter_groups expects the name of a group to be constrained, other, {', '.join(KINDS)} "
                f"or the name of a parameter; got {name!r}"
            )
        own[name] = own.get(name, {}) | dict(different)
    own["other"] = own.pop("other", {})  # the last one
    members: dict[str, list[Tensor]] = {name: [] for name in own}
    for parameter in model.parameters():
        kind = kinds.get(parameter, "other")
        fitting = (*names[parameter], kind, "constrained" if kind in CONSTRAINED else "other")
        members[next(group for group in fitting if group in own)].append(parameter)
    common = {"lr": lr, **options}
    return [{"params": params, "name": name, **common, **own[name]} for name, params in members.items() if params]
