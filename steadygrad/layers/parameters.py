"""Base class of recurrent layers that own their parameters: initial values, earlier names, tools that replace them."""

import pickle
import warnings
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from steadygrad.layers.former import complete, rename
from steadygrad.layers.gates import Gates
from steadygrad.layers.naming import take_over
from steadygrad.layers.torch_form import read_torch_state
from steadygrad.matrices import Matrix


class Arguments:
    """Arguments of a constructor. They are not pickled if one of them cannot be, such as a local function."""

    def __init__(self, positional: tuple[Any, ...] | None = None, named: dict[str, Any] | None = None) -> None:
        self.positional, self.named = positional, named

    def __deepcopy__(self, memo: dict[int, Any]) -> "Arguments":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickle.dumps((self.positional, self.named))
        except Exception:  # pickle raises errors of many kinds
            return Arguments, ()
        return Arguments, (self.positional, self.named)


def refusal(layer: nn.Module, name: str) -> ValueError:
    """Return the error for a tool that would replace the matrix ``name`` of a layer, which is under a constraint."""
    return ValueError(
        f"{type(layer).__name__} expects {name} to stay as it is: a constraint computes it from "
        f"{', '.join(key for key, _ in layer.named_parameters() if key.startswith(f'{name}.'))}. Use drop_weights() to "
        "drop its entries, penalty() or weight decay of these tensors to shrink it, or another kind of matrix, such as "
        "free, to prune or normalise it"
    )


class Guarded(dict[str, nn.Parameter | None]):
    """Parameters of a layer. Removing the name of a constrained matrix, as weight norm does, raises ValueError."""

    def __init__(self, layer: nn.Module, parameters: dict[str, nn.Parameter | None]) -> None:
        super().__init__(parameters)
        self.layer = layer

    def __delitem__(self, name: str) -> None:
        if name not in self and isinstance(self.layer._modules.get(name), Matrix | Gates):
            raise refusal(self.layer, name)
        super().__delitem__(name)


class GuardedParametrizations(nn.ModuleDict):
    """What `torch.nn.utils.parametrize` finds in a layer. The name of a constrained matrix raises ValueError."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.owner = (layer,)  # in a tuple, so that it is no part of this module

    def __contains__(self, name: object) -> bool:
        (layer,) = self.owner
        if isinstance(layer._modules.get(str(name)), Matrix | Gates):
            raise refusal(layer, str(name))
        return super().__contains__(str(name))


class ParameterOwner(nn.Module):
    """Base class of layers that own the parameters of their ``cells``, under the names that torch.nn.GRU gives them.

    Tools that replace a weight by name work with matrices without a constraint and raise ValueError for others. State
    dicts with the earlier names of the parameters are loaded, too (`steadygrad.layers.former`), and those of torch.nn
    (`steadygrad.layers.torch_form`).
    """

    cells: nn.ModuleList
    _arguments: Arguments

    def __new__(cls, *positional: Any, **named: Any) -> "ParameterOwner":
        layer = super().__new__(cls)
        layer.__dict__["_arguments"] = Arguments(positional, named)
        return layer

    def __init__(self) -> None:
        super().__init__()
        self._guard()

    def take_over(self) -> None:
        """Move the parameters of the cells into the layer, and let its matrices notice if they are overwritten."""
        take_over(self)
        for name, part in self.named_modules():
            if isinstance(part, Matrix):
                part.place = name
                part.watch(f"{type(self).__name__}.{name}")

    def reset_parameters(self) -> None:
        """Draw new initial values of all parameters and buffers, as the constructor of the layer does.

        Raise RuntimeError if the layer was unpickled and its constructor had arguments that cannot be pickled.
        """
        kind, arguments = type_before_parametrizations(self), self._arguments
        if arguments.positional is None or arguments.named is None:
            raise RuntimeError(
                f"{kind.__name__} expects the arguments of its constructor for reset_parameters; one of them could not "
                "be pickled with the layer, so build a new layer"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the constructor of this layer has given them
            fresh = kind(*arguments.positional, **arguments.named)
        self.load_state_dict(fresh.state_dict())

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter, as `nn.Module` does. Raise ValueError for a constrained matrix, which pruning would add."""
        if isinstance(param, Matrix | Gates):
            raise refusal(self, next(own for own, part in self._modules.items() if part is param))
        super().register_parameter(name, param)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy or a pickle, with ordinary dicts in place of those that guard names."""
        state = {name: value for name, value in self.__dict__.items() if name != "parametrizations"}
        return state | {"_parameters": dict(self._parameters)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes, and guard the names of constrained matrices again."""
        super().__setstate__(state)
        self._guard()

    def _guard(self) -> None:
        """Let tools that would replace a constrained matrix by its name raise ValueError."""
        self.__dict__["_parameters"] = Guarded(self, self._parameters)
        self.__dict__["parametrizations"] = GuardedParametrizations(self)

    def __delattr__(self, name: str) -> None:
        if isinstance(self._modules.get(name), Matrix | Gates):
            raise refusal(self, name)
        super().__delattr__(name)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load the parameters, as `nn.Module` does, also under their earlier names and those of torch's layer."""
        rename(self, state, prefix)
        read_torch_state(self, state, prefix)
        complete(self, state, prefix)
        super()._load_from_state_dict(state, prefix, *rest)
