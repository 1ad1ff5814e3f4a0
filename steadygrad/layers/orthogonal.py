"""RNNs whose free matrix starts orthogonal (Henaff et al., 2016) or as the identity (Le, Jaitly & Hinton, 2015)."""

from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice, is_number
from steadygrad.kernels import at_least_single, own_precision
from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import Initialiser


class OrthogonalRNN(RNN, name="rnn-orth"):
    """h_t = φ(U x_t + W h_{t−1} + b),  W free, orthogonal at the start,  φ = tanh by default.

    ``init`` names the initialisation of W: ``haar``, ``henaff`` or ``cayley``; the nnRNN program uses
    ``random-orthogonal`` or ``exp-cayley`` for the paper's tables 2, 3 and 5. ``input_init``, ``bias_init`` and
    ``added_bias`` are those of `RNN`.

    ``penalty()`` is λ Σ ‖WᵀW − I‖² over the matrices, λ = ``pull``, which is 0 by default. It keeps them near
    orthogonal and is the soft constraint of Vorontsov et al. (2017). ``pull_norm`` is ``"frobenius"`` or
    ``"spectral"``. The gradient of the spectral norm changes only the singular value whose square is furthest from 1.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str = "tanh",
        init: str = "haar",
        pull: float = 0.0,
        pull_norm: str = "frobenius",
        input_init: str | Initialiser | None = None,
        bias_init: str | Initialiser | None = None,
        added_bias: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        if not is_number(pull, 0):
            raise ValueError(f"OrthogonalRNN expects pull to be a number of at least 0; got {pull!r}")
        check_choice("OrthogonalRNN", "pull_norm", pull_norm, NORMS)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={"name": "free", "init": init},
            input_init=input_init,
            bias_init=bias_init,
            added_bias=added_bias,
            **common,
        )
        self.pull, self.pull_norm = pull, pull_norm

    def penalty(self) -> Tensor | float:
        """Return λ Σ ‖WᵀW − I‖² over the recurrent matrices W, which training adds to the loss, as a scalar tensor.

        λ is ``pull`` and the norm ``pull_norm``. If λ is 0, return 0.0.
        """
        if not self.pull:
            return 0.0
        return self.pull * sum(distance(W, self.pull_norm) for W in self.matrices().values())


def frobenius(E: Tensor) -> Tensor:
    """Return ‖E‖_F², the sum of the squared entries of E, as a scalar tensor."""
    return E.square().sum()


def spectral(E: Tensor) -> Tensor:
    """Return ‖E‖₂² of a symmetric E, the square of its largest eigenvalue in modulus, as a scalar tensor."""
    return torch.linalg.eigvalsh(at_least_single(E)).square().amax().to(E.dtype)


NORMS = {"frobenius": frobenius, "spectral": spectral}


def distance(W: Tensor, norm: str = "frobenius") -> Tensor:
    """Return ‖WᵀW − I‖² of a real square W as a scalar tensor. ``norm`` is a name in `NORMS`: frobenius or spectral."""
    with own_precision(W.device.type):
        return NORMS[norm](W.mT @ W - torch.eye(len(W), dtype=W.dtype, device=W.device))


class IRNN(RNN, name="irnn"):
    """h_t = max(U x_t + W h_{t−1} + b, 0),  W free, the identity at the start.

    A ReLU network that copies its state at the start. U starts from N(0, 0.001²) and b at 0.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **common: Unpack[Common]) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation="relu",
            recurrent={"name": "free", "init": "identity"},
            input_init=partial(nn.init.normal_, std=0.001),  # Le et al., section 4
            bias_init=nn.init.zeros_,
            **common,
        )
