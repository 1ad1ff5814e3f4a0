"""Non-normal matrices with a chosen spectrum, by a real Schur form (Kerg et al., 2019)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.check import check_size, is_number
from steadygrad.kernels import in_own_precision, matmul, needs_plain, wants_graph, with_graph
from steadygrad.matrices.exponential import Exponential
from steadygrad.matrices.init import free_tensor
from steadygrad.matrices.matrix import Matrix, check_square, index_of, lower_triangle
from steadygrad.matrices.measures import checked
from steadygrad.matrices.registry import entered
from steadygrad.matrices.schur_basis import equalised, normal_pair, triangular_basis


class SchurProduct(torch.autograd.Function):
    """Autograd function W = P (Λ + T) Pᵀ in two matrix products; its gradient takes four.

    Λ has 2 × 2 blocks γ (rotation by θ) on its diagonal, and T is strictly lower triangular.
    """

    @staticmethod
    def forward(ctx: Any, P: Tensor, theta: Tensor, gamma: Tensor, T: Tensor, in_block: bool) -> Tensor:
        """Return W (n, n) from the basis P (n, n), the angles θ (⌊n/2⌋) and moduli γ (⌈n/2⌉) of Λ, and the packed T."""
        n = len(P)
        core = strictly_lower(T, n, in_block)
        c, s = gamma[: len(theta)] * theta.cos(), gamma[: len(theta)] * theta.sin()
        blocks = diagonal_blocks(core)
        blocks[0, 0], blocks[0, 1], blocks[1, 1] = c, -s, c
        blocks[1, 0] += s  # T is zero here unless `in_block`
        if n % 2:
            core[-1, -1] = gamma[-1]
        Q = matmul(P, core)
        ctx.save_for_backward(P, core, Q, theta, gamma, T)
        ctx.in_block = in_block
        return matmul(Q, P.mT)

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of P, θ, γ and T from the gradient G of W."""
        P, core, Q, theta, gamma, T = ctx.saved_tensors
        if wants_graph():
            return with_graph(schur_product, (P, theta, gamma, T, ctx.in_block), [G])
        dQ = matmul(G, P)
        dP = matmul(G.mT, Q, add=matmul(dQ, core.mT))
        dcore = matmul(P.mT, dQ)
        blocks = diagonal_blocks(dcore)
        dc, ds = blocks[0, 0] + blocks[1, 1], blocks[1, 0] - blocks[0, 1]
        dtheta = gamma[: len(theta)] * (ds * theta.cos() - dc * theta.sin())
        dgamma = dc * theta.cos() + ds * theta.sin()
        if len(P) % 2:
            dgamma = torch.cat([dgamma, dcore[-1:, -1]])
        dT = dcore.reshape(-1).index_select(0, below(len(P), ctx.in_block, P.device))
        return dP, dtheta, dgamma, dT, None


def schur_product(P: Tensor, theta: Tensor, gamma: Tensor, T: Tensor, in_block: bool) -> Tensor:
    """Return W = P (Λ + T) Pᵀ by standard torch operations; θ and γ are the angles and moduli of Λ, T is packed."""
    n, even = len(P), torch.arange(len(theta), device=P.device) * 2
    c, s = gamma[: len(theta)] * theta.cos(), gamma[: len(theta)] * theta.sin()
    last = gamma[len(theta) :]  # the last γ of an odd size
    diagonal = torch.cat([torch.stack([c, c], dim=1).flatten(), last]).diag()
    rotation = P.new_zeros(n * n).scatter(
        0, torch.cat([(even + 1) * n + even, even * n + even + 1]), torch.cat([s, -s])
    )
    core = diagonal + rotation.view(n, n) + strictly_lower(T, n, in_block)
    return P @ core @ P.mT


def strictly_lower(T: Tensor, n: int, in_block: bool) -> Tensor:
    """Return the packed strictly lower triangular T as an n × n matrix; see `below` for ``in_block``."""
    return T.new_zeros(n * n).scatter(0, below(n, in_block, T.device), T).view(n, n)


def diagonal_blocks(core: Tensor) -> Tensor:
    """Return a view of the 2 × 2 blocks on a matrix's diagonal: entry [i, j, k] is entry (i, j) of block k."""
    pairs = len(core) // 2
    return core[: 2 * pairs, : 2 * pairs].view(pairs, 2, pairs, 2).diagonal(dim1=0, dim2=2)


@index_of
def below(n: int, in_block: bool, device: torch.device) -> Tensor:
    """Return the positions of the packed T in a flattened n × n matrix, row by row.

    T lies below the diagonal if ``in_block``, otherwise below the 2 × 2 blocks on the diagonal.
    """
    if in_block:
        return lower_triangle(n, torch.device("cpu")).to(device)
    rows = [torch.arange(i * n, i * n + i // 2 * 2, device="cpu") for i in range(n)]  # an export needs their number
    return torch.cat(rows).to(device)


class RealSchur(nn.Module):
    """Map W = P (Λ + T) Pᵀ,  P = exp(A), A skew, Λ = ⊕ₖ γₖ [[cos θₖ, −sin θₖ], [sin θₖ, cos θₖ]], T block-lower.

    The eigenvalues are γₖ e^{±iθₖ} for any P and T. So γ ≈ 1 keeps gradients from vanishing, and T adds the transients
    that a normal matrix cannot have. ``in_block=True`` follows the paper's eq. 5 literally: T also has the entry inside
    each 2 × 2 block, and where that entry is not zero, γ and θ no longer give the eigenvalues. An odd size ends with
    the 1 × 1 block γ, so there are ⌊n/2⌋ angles and ⌈n/2⌉ moduli.
    """

    kinds = ("skew", "angle", "modulus", "transient")

    def __init__(self, size: int, in_block: bool = False) -> None:
        super().__init__()
        self.size, self.in_block = check_size("RealSchur", size), in_block
        self.basis = Exponential(size)

    @staticmethod
    def free_sizes(size: int, in_block: bool = False) -> tuple[int, int, int, int]:
        """Return how many numbers the packed A, θ, γ and T hold, as a tuple of four."""
        pairs, triangle = size // 2, size * (size - 1) // 2
        return triangle, pairs, size - pairs, triangle if in_block else triangle - pairs

    def forward(self, basis: Tensor, theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
        """Return W (n, n) from the packed A (``basis``), the angles θ, the moduli γ and the packed T.

        Raise ValueError if a tensor does not have the length in `free_sizes`.
        """
        free = {"basis": basis, "theta": theta, "gamma": gamma, "T": T}
        for (name, tensor), length in zip(free.items(), self.free_sizes(self.size, self.in_block), strict=True):
            if tensor.shape != (length,):
                raise ValueError(
                    f"RealSchur of size {self.size} expects {length} numbers in {name}; got shape {tuple(tensor.shape)}"
                )
        product = schur_product if needs_plain(T) else SchurProduct.apply
        return product(self.basis(basis), theta, gamma, T, self.in_block)

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the free tensors A, θ, γ and T of W, a tuple.

        They come from a real Schur form of W. A 2 × 2 block that is no rotation times a number is replaced by the
        nearest such block. With ``in_block`` that is never necessary, and every real W is reached.
        """
        check_square("RealSchur", W, self.size)
        M = checked("RealSchur", W)
        P = triangular_basis(M, normal_pair)
        if torch.linalg.det(P) < 0:
            P[:, -1] *= -1
        core = P.mT @ M @ P
        if self.in_block:
            turns = [equalised(block) for block in diagonal_blocks(core).permute(2, 0, 1)]
            P = P @ torch.block_diag(*turns, *[torch.ones_like(core[:1, :1])] * (self.size % 2))
            core = P.mT @ M @ P
        blocks = diagonal_blocks(core)
        sine = -blocks[0, 1] if self.in_block else (blocks[1, 0] - blocks[0, 1]) / 2
        cosine = (blocks[0, 0] + blocks[1, 1]) / 2
        blocks[1, 0] -= sine
        last = core.diagonal()[2 * len(sine) :]
        T = core.reshape(-1).index_select(0, below(self.size, self.in_block, core.device))
        gamma = torch.cat([torch.hypot(cosine, sine), last])
        free = self.basis.right_inverse(P), torch.atan2(sine, cosine), gamma, T
        A, theta, gamma, T = (f.to(W.dtype) for f in free)
        return A, theta, gamma, T

    def transients(self, T: Tensor) -> Tensor:
        """Return the packed T as a strictly lower triangular matrix."""
        return strictly_lower(T, self.size, self.in_block)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}, in_block={self.in_block}"


@entered("schur")
def real_schur(size: int, *, in_block: bool = False, init: str = "henaff", modulus: float | None = None) -> Matrix:
    """Return a `Matrix` with the map `RealSchur` that starts orthogonal: γ = 1, T = 0, θ ~ U(0, 2π).

    ``init`` is the name of the initialiser of its basis P, such as "henaff" (`steadygrad.matrices.init`). With
    ``modulus`` every γ has that value and is not trained.
    """
    map = RealSchur(size, in_block)
    _, angles, moduli, transients = map.free_sizes(size, in_block)
    theta = torch.empty(angles).uniform_(0, 2 * math.pi)
    gamma = start_of_moduli("RealSchur", moduli, modulus)
    return Matrix(map, free_tensor(init, map.basis), theta, gamma, torch.zeros(transients))


def start_of_moduli(who: str, count: int, modulus: float | None) -> nn.Parameter:
    """Return the initial moduli γ (count): ones that are trained or, with ``modulus``, its value, which is not trained.

    Raise ValueError, in the name of ``who``, unless ``modulus`` is None or above 0.
    """
    if modulus is not None and not (is_number(modulus) and modulus > 0):
        raise ValueError(f"{who} expects a modulus above 0, or None for one that is trained; got {modulus!r}")
    return nn.Parameter(torch.full((count,), 1.0 if modulus is None else float(modulus)), requires_grad=modulus is None)
