"""Recurrent networks with complex units and a unitary matrix."""

import math
from typing import Any, Unpack

from torch import Tensor, nn

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import uniform


class UnitaryRNN(RNN):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  h complex, W unitary.

    Base class of `URNN`, `FullCapacityURNN`, `ScuRNN` and `EURNN`. The output is (Re h, Im h), 2 · hidden_size
    features. ``recurrent`` is a dict {"name": …, options} of the kind of W.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        recurrent: dict[str, Any],
        activation: str = "modrelu",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent=recurrent,
            complex=True,
            input_init=nn.init.xavier_uniform_,
            bias_init=uniform(0.01),
            **common,
        )


class URNN(UnitaryRNN, name="urnn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁ unitary, h complex (Arjovsky et al., 2016).

    D are diagonal matrices of phases and R reflections, both trained. F is the Fourier transform, Π a fixed
    permutation. W has 7n parameters for n = hidden_size complex units, and a product with it costs O(n log n). It
    cannot represent most unitary matrices. The output is (Re h, Im h), 2n features.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **common: Unpack[Common]) -> None:
        super().__init__(input_size, hidden_size, num_layers, recurrent={"name": "evolution"}, **common)


class FullCapacityURNN(UnitaryRNN, name="full-urnn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W any unitary matrix, h complex (Wisdom et al., 2016).

    The output is (Re h, Im h), 2 · hidden_size features. Each update moves W along the manifold of unitary matrices.
    Three options reproduce the authors' program:

    - ``full_diagonal``: gradient descent with rate λ on the free numbers of W equals the authors' step with their λ.
      Without it the phases on the diagonal change half as fast (`StiefelSteps`);
    - ``activation="smoothed-modrelu"``: modReLU with the authors' two constants of 1e-5. It runs through autograd
      instead of the fused kernel, so it is slower;
    - ``trained_state``: h_0 is trained and starts as U(±√(1.5/hidden_size)).

    The authors train with the settings ``optimizer = "rmsprop-theano"`` and ``optimizer_constrained = "sgd"``. One
    difference remains. The authors' step reads only the part of dL/dW that comes from Re h, about half of it; this
    layer uses the whole gradient.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        full_diagonal: bool = False,
        activation: str = "modrelu",
        **common: Unpack[Common],
    ) -> None:
        recurrent = {"name": "stiefel", "full_diagonal": full_diagonal}
        super().__init__(input_size, hidden_size, num_layers, recurrent=recurrent, activation=activation, **common)

    def reset_initial_state(self, start: Tensor) -> None:
        """Fill one tensor of the trained initial state in place from the uniform law on ±√(1.5/hidden_size)."""
        uniform(math.sqrt(1.5 / self.hidden_size))(start)


class ScuRNN(UnitaryRNN, name="scurnn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = (I + A)⁻¹ (I − A) D,  D = diag(e^{iθ}) (Maduranga et al., 2019).

    h is complex, A skew-Hermitian and W unitary; A and θ are trained. ``init`` names the initialisation of A. The
    output is (Re h, Im h), 2 · hidden_size features.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        init: str = "cayley",
        **common: Unpack[Common],
    ) -> None:
        recurrent = {"name": "complex-cayley", "init": init}
        super().__init__(input_size, hidden_size, num_layers, recurrent=recurrent, **common)


class EURNN(UnitaryRNN, name="eurnn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = F_L … F_1 D unitary, layers of plane rotations (Jing et al., 2017).

    h is complex, and the output is (Re h, Im h), 2n features for n = hidden_size. Each F rotates pairs of units, and D
    is a diagonal of phases. ``style="tunable"``, the default, has L = ``capacity`` layers, 2 by default. Other styles
    take no ``capacity``. ``style="full"`` has n layers and can represent every unitary matrix. ``style="fft"`` has
    log₂ n layers, with pairs of units at distances 1, 2, 4 and so on.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        capacity: int | None = None,
        style: str = "tunable",
        **common: Unpack[Common],
    ) -> None:
        recurrent = {"name": "givens", "capacity": capacity, "style": style}
        super().__init__(input_size, hidden_size, num_layers, recurrent=recurrent, **common)
