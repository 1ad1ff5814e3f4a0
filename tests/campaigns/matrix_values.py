"""Give matrices odd parameter values: NaN, infinite, huge, tiny, zero, repeated, strided, in every dtype.

The constraint holds, or the matrix raises NonFiniteError or another ValueError.

In bfloat16 a real matrix is computed in single precision and then rounded. The constraint is measured before the
rounding, with the bound of single precision, and W must be exactly that matrix, rounded. A bound on the spectral radius
after the rounding would have to depend on W. If W = V Λ V⁻¹ becomes W + E, then |E| ≤ u |W| entry by entry,
u = eps / 2 = 2⁻⁸. So ‖E‖₂ ≤ u ‖W‖_F, and by Bauer and Fike each eigenvalue of W + E is within κ(V) u ‖W‖_F of one of W:
with ‖W‖_F = 185 and κ(V) = 251, as in one try, that says nothing, and the radius did rise from 1 to 1.19.
"""

from random import Random

import torch
from torch import Tensor

from steadygrad.matrices import COMPLEX, MATRICES, Matrix, build
from tests.campaigns.campaign import Campaign
from tests.campaigns.violation import violation

NAMES = [*MATRICES, *COMPLEX]
SCALES = [0.0, 1e-42, 1e-30, 1e-8, 1e-3, 1.0, 1.0, 10.0, 100.0, 1e4, 1e6, 1e10, 1e20, 1e30, 1e37]
OPTIONS = {
    "svd": [{"bases": "exponential"}, {"margin": 0.0}, {"reflections": 1}],
    "eigenvalue": [{"radius": "power"}, {"epsilon": 1e-3}],
    "longshort": [{"radius": "power"}, {"coupling": False}, {"short_size": 0}],
    "givens": [{"style": "full"}, {"style": "fft"}],
    "rotations": [{"style": "full"}, {"style": "fft"}],
    "householder": [{"reflections": 1}],
    "stiefel": [{"full_diagonal": True}],
    "schur": [{"modulus": 1.0}],
}
BOUNDS = {torch.float64: 1e-9}
"""bound of a violation in double precision"""


def run(campaign: Campaign) -> None:
    """Set the free tensors of one matrix to odd values in each try, and evaluate it with a backward pass."""
    torch.set_num_threads(1)
    for random in campaign.tries():
        torch.manual_seed(random.randrange(2**31))
        name = random.choice(NAMES)
        options = random.choice([{}, *OPTIONS.get(name, [])])
        size = random.choice([1, 2, 3, 8, 9, 32]) if "short_size" not in options else 5
        dtype = random.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16])
        kinds: list[str] = []
        with campaign.expecting("a matrix of odd values", ValueError):
            matrix = build({"name": name, **options}, size, complex=name in COMPLEX).to(dtype)
            matrix.train(random.random() < 0.5)
            kinds = [fill(random, free) for free in matrix.packed()]
            campaign.count("matrices")
            computed: list[Tensor] = []
            matrix.map.register_forward_hook(lambda module, inputs, W, found=computed: found.append(W.detach()))
            W = matrix()
            W.abs().square().sum().backward()
            judge(campaign, matrix, W, computed[-1], f"{name} {options} of size {size}, {dtype}, {kinds}")


def judge(campaign: Campaign, matrix: Matrix, W: Tensor, computed: Tensor, what: str) -> None:
    """Record a failure if W is not finite, breaks its constraint, or is not ``computed``, the map's result, rounded.

    The constraint is measured before the rounding.
    """
    dtype = matrix.packed()[0].dtype
    if not torch.equal(W, computed.to(W.dtype)) and W.isfinite().all():
        return campaign.fail(f"{what}: W is not the rounded result of the map")
    if matrix.orthogonal and not W.isfinite().all():
        return campaign.fail(f"{what}: W is not finite")
    if not W.isfinite().all():
        return None  # moduli and transients may overflow
    found, bound = violation(matrix, computed)
    bound = BOUNDS.get(dtype, bound)
    if not found <= bound:
        campaign.fail(f"{what}: {found:.3g} from its constraint, bound {bound:g}")
    campaign.largest("largest share of the bound", found / bound)
    return None


@torch.no_grad()
def fill(random: Random, free: Tensor) -> str:
    """Fill a free tensor with values of a random kind. Return the kind."""
    scale = random.choice(SCALES)
    kind = random.choice(["normal", "normal", "one value", "few entries", "mixed sizes", "shaped", "strided", "bad"])
    values = torch.randn(free.shape, dtype=torch.float64) * scale
    if kind == "one value":
        values = torch.full_like(values, scale)
    if kind == "few entries":
        values = values * (torch.rand_like(values) < 0.1)
    if kind == "mixed sizes":
        values = values * 10.0 ** torch.randint(-6, 7, values.shape)
    if kind == "shaped" and values.dim() == 2:
        values = shaped(random, values)
    if kind == "bad" and values.numel():
        values.view(-1)[random.randrange(values.numel())] = random.choice([torch.nan, torch.inf, -torch.inf])
    if kind == "strided":
        free.data = torch.stack([free.data, free.data], dim=-1)[..., 0]
    largest = torch.finfo(free.dtype).max
    free.copy_(values if kind == "bad" else values.clamp(-largest, largest))
    return f"{kind} {scale:g}"


def shaped(random: Random, values: Tensor) -> Tensor:
    """Return a matrix with a special structure: triangular, repeated eigenvalues, low rank, or one large block."""
    n, m = values.shape
    match random.randrange(5):
        case 0:
            return values.triu()
        case 1:
            return torch.eye(n, m, dtype=values.dtype) * 1.5 + values.triu(1)  # all eigenvalues equal
        case 2:
            return values[:, :1] @ values[:1]
        case 3:
            return torch.ones_like(values).triu(-1).tril(3) - 2 * torch.ones_like(values).triu(-1).tril(-1)  # Grcar
    values[: n // 2] *= 1e6
    return values
