"""nnRNN: a recurrent matrix with a controlled spectrum and free transients (Kerg et al., 2019)."""

from typing import Unpack

from torch import Tensor

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import Initialiser, uniform
from steadygrad.matrices.parameters import whole


class NNRNN(RNN, name="nnrnn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = P (Λ + T) Pᵀ,  Λ = ⊕ γₖ rot(θₖ),  P orthogonal.

    Λ is block-diagonal with 2 × 2 rotations by θₖ, scaled by γₖ. T is free below these blocks and 0 elsewhere. The
    eigenvalues of W are γₖ e^{±iθₖ} for any P and T. ``penalty()`` is δ Σ (γₖ − 1)², δ = ``spectrum_pull``, and keeps
    the eigenvalues near the unit circle. ``modulus`` fixes every γₖ to one value instead. ``in_block=True`` is the form
    printed in the paper (its Eq. 5): T also acts inside the 2 × 2 blocks, where it changes the eigenvalues.
    ``complex=True`` has complex units and W = P (Λ + T) Pᴴ, Λ diagonal; together with ``in_block`` it raises
    ValueError. ``init`` names the initialisation of P. ``input_init`` is the initialisation of U, as in `RNN`; the
    authors' program uses kaiming for pixels and text, xavier for copy.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        spectrum_pull: float = 1e-4,  # δ of the copy task, table 2
        in_block: bool = False,
        modulus: float | None = None,
        complex: bool = False,
        activation: str = "modrelu",
        init: str = "henaff",
        input_init: str | Initialiser = "kaiming",
        **common: Unpack[Common],
    ) -> None:
        if complex and in_block:
            raise ValueError("NNRNN expects in_block=False for complex units: their Λ is diagonal, without blocks")
        schur = {"name": "complex-schur"} if complex else {"name": "schur", "in_block": in_block}
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={**schur, "init": init, "modulus": modulus},
            complex=complex,
            input_init=input_init,
            bias_init=uniform(0.01),
            **common,
        )
        self.spectrum_pull, self.modulus = spectrum_pull, modulus

    def penalty(self) -> Tensor | float:
        """Return δ Σ (γₖ − 1)², which training adds to the loss to keep eigenvalues near the unit circle.

        The result is a scalar tensor. γₖ are the moduli of the eigenvalues of all recurrent matrices, δ is
        ``spectrum_pull``. If the moduli are fixed by ``modulus``, return 0.0.
        """
        if self.modulus is not None:
            return 0.0
        gammas = [whole(f) for m in self._maps() for f, kind in zip(m.free, m.kinds, strict=True) if kind == "modulus"]
        return self.spectrum_pull * sum((gamma - 1).square().sum() for gamma in gammas)
