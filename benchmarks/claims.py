"""Ratios that the benchmarks report, and the bounds that they should satisfy."""

from dataclasses import dataclass
from typing import Any

from benchmarks.contenders import COMPLEX, KERNEL, PLAIN
from benchmarks.peers import GEOTORCH, NAIVE
from benchmarks.timing import Spread

LIMIT = "limit"


@dataclass(frozen=True)
class Claim:
    """The ratio ``above`` / ``below``. A bound is a minimum, or a maximum if ``at_most``. It may depend on the size."""

    label: str
    above: str
    below: str
    bounds: tuple[float, ...] | float | None = None
    at_most: bool = False
    compact: bool = True
    """Whether the short table includes the ratio."""

    def bound(self, index: int) -> float | None:
        return self.bounds[index] if isinstance(self.bounds, tuple) else self.bounds

    def holds(self, ratio: float, bound: float) -> bool:
        return ratio <= bound if self.at_most else ratio >= bound


# Bounds are those of the project's first milestone, measured on two cores with AVX2. There is one for each of `SIZES`.
STEP_CLAIMS = (
    Claim("nn.RNN / expRNN", "nn.RNN", "ExpRNN", (4.5, 4, 3.3, 1.6, 1.1)),
    Claim("nn.RNN / nnRNN", "nn.RNN", "NNRNN", (4, 3.5, 3, 1.5, 1.0)),
    Claim("nn.RNN / scoRNN", "nn.RNN", "ScoRNN", (5, 4.5, 3.8, 1.8, 1.2)),
    Claim("nn.RNN / ENRNN", "nn.RNN", "ENRNN"),
    Claim("nn.RNN / ENRNN, normalising", "nn.RNN", "ENRNN (normalising)"),
    Claim("nn.RNN / RNN(modReLU)", "nn.RNN", PLAIN, compact=False),
    Claim("nn.RNN / RNN(tanh)", "nn.RNN", "RNN (tanh)"),
    Claim("nn.GRU / NC-GRU(c)", "nn.GRU", "NCGRU", (5, 3.5, 3, 1.4, 1.1)),
    Claim("nn.GRU / GRU", "nn.GRU", "GRU"),
    Claim("nn.LSTM / LSTM", "nn.LSTM", "LSTM"),
    Claim("nn.RNN / oRNN, 16 reflections", "nn.RNN", "ORNN", compact=False),
    Claim("nn.RNN / Spectral RNN, 16 reflections", "nn.RNN", "SpectralRNN", compact=False),
    *(Claim(f"nn.RNN / {name}, N/2 complex units", "nn.RNN", name, compact=False) for name in COMPLEX),
    Claim("nn.GRU / GORU", "nn.GRU", "GORU", compact=False),
    Claim("nn.LSTM / h-detach", "nn.LSTM", "HDetachLSTM", compact=False),
    Claim("loop with torch's orthogonal / expRNN", NAIVE, "ExpRNN"),
    Claim("loop with geotorch / expRNN", GEOTORCH, "ExpRNN"),
    Claim("torchrecurrent's AntisymmetricRNN / expRNN", "torchrecurrent AntisymmetricRNN", "ExpRNN"),
    Claim("torchrecurrent's coRNN / expRNN", "torchrecurrent coRNN", "ExpRNN", compact=False),
    Claim("torchrecurrent's FastRNN / RNN(tanh)", "torchrecurrent FastRNN", "RNN (tanh)", compact=False),
    Claim("torchrecurrent's MGU / NC-GRU(c)", "torchrecurrent MGU", "NCGRU", compact=False),
    Claim("torchrecurrent's PeepholeLSTM / LSTM", "torchrecurrent PeepholeLSTM", "LSTM", compact=False),
    Claim("kernel(modReLU) / limit", KERNEL, LIMIT, 1.3, at_most=True),
    Claim("RNN(modReLU) / limit", PLAIN, LIMIT),
    Claim("nn.RNN / limit", "nn.RNN", LIMIT, compact=False),
)

MATRIX_EXP, EIGVALS = "torch.matrix_exp", "torch.linalg.eigvals"

MATRIX_CLAIMS = (
    Claim("torch.matrix_exp / exponential", MATRIX_EXP, "exponential", 5.0),
    Claim("torch.matrix_exp / cayley", MATRIX_EXP, "cayley", compact=False),
    Claim("torch.matrix_exp / neumann", MATRIX_EXP, "neumann", compact=False),
)

RNN_LIKE = (PLAIN, "RNN (tanh)", "ExpRNN", "ScoRNN", "NNRNN", "ENRNN", "ENRNN (normalising)")

MEMORY_CLAIMS = (
    *(Claim(f"{name} / nn.RNN", name, "nn.RNN", 1.0, at_most=True, compact=name == "ExpRNN") for name in RNN_LIKE),
    Claim("GRU / nn.GRU", "GRU", "nn.GRU", 1.0, at_most=True, compact=False),
    Claim("NC-GRU(c) / nn.GRU", "NCGRU", "nn.GRU", 1.0, at_most=True),
    Claim("LSTM / nn.LSTM", "LSTM", "nn.LSTM", 1.0, at_most=True),
    Claim("loop with torch's orthogonal / nn.RNN", NAIVE, "nn.RNN", compact=False),
)


def judged(claim: Claim, ratio: Spread | float, bound: float | None) -> dict[str, Any]:
    """Return the ratio, its bound and whether the bound holds, for JSON."""
    numbers = ratio.as_dict() if isinstance(ratio, Spread) else {"median": ratio}
    return {
        "label": claim.label,
        "above": claim.above,
        "below": claim.below,
        "compact": claim.compact,
        **numbers,
        "bound": bound,
        "at_most": claim.at_most,
        "holds": None if bound is None else claim.holds(numbers["median"], bound),
    }
