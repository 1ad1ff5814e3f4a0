"""Orthogonal matrices as products of Householder reflections (Mhammedi et al., 2017)."""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from steadygrad.check import check_size, is_integer
from steadygrad.kernels import Operator, in_own_precision, matmul, needs_plain, wants_graph, with_graph
from steadygrad.matrices.matrix import Matrix, check_square, index_of, is_orthogonal, nearest_orthogonal
from steadygrad.matrices.registry import entered


class Reflections(torch.autograd.Function):
    """Autograd function W = I − Vᵀ Y,  Y = S⁻¹ V,  S = striu(V Vᵀ) + ½ I,  the rows of V are vectors of length 1.

    W (n, n) is the product of the reflections of all k rows of V (k, n), in compact WY form. striu(M) is the part of M
    above its diagonal. With G = dL/dW
    dL/dV = (M + Mᵀ) V − Y Gᵀ − Q,  Q = S⁻ᵀ V G,  M = striu(Q Yᵀ)
    """

    @staticmethod
    def forward(ctx: Any, free: Tensor, n: int, k: int) -> Tensor:
        """Return W = H_1 H_2 … H_k (n, n), the product of k Householder reflections, from their packed vectors.

        ``free`` holds the vectors one after the other: all n entries of the first, the last n − 1 entries of the
        second, and so on, k (2n − k + 1)/2 numbers in all. The vectors need not have length 1. Raise ValueError if one
        is 0.
        """
        V, length = unit_rows(free, n, k)
        S = matmul(V, V.mT)
        S.diagonal().sub_(0.5)  # entries below the diagonal are ignored later
        Y = torch.linalg.solve_triangular(S, V, upper=True)
        ctx.save_for_backward(free, V, S, Y, length)
        W = matmul(V.mT, Y, alpha=-1)
        W.diagonal().add_(1)
        return W

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the packed vectors from the gradient G of W, and None for the other arguments."""
        free, V, S, Y, length = ctx.saved_tensors
        k, n = V.shape
        if wants_graph():
            return with_graph(compact, (free, n, k), [G])
        Q = matmul(torch.linalg.solve_triangular(S.mT, V, upper=False), G)
        M = matmul(Q, Y.mT).triu_(1)
        M += M.mT.contiguous()
        dV = matmul(M, V, add=matmul(Y, G.mT, add=Q).neg_())
        dV -= V * (dV * V).sum(1, keepdim=True)  # a reflection does not depend on the length of its vector
        return dV.div_(length).view(-1).index_select(0, trapezoid(n, k, V.device)), None, None


def compact(free: Tensor, n: int, k: int) -> Tensor:
    """Return W (n, n) from the packed vectors of k reflections, as `Reflections` does, by standard torch operations."""
    V, _ = unit_rows(free, n, k)
    I = torch.eye(n, dtype=V.dtype, device=V.device)
    S = (V @ V.mT).triu(1) + torch.eye(k, dtype=V.dtype, device=V.device) / 2
    return I - V.mT @ torch.linalg.solve_triangular(S, V, upper=True)


@index_of
def trapezoid(n: int, k: int, device: torch.device) -> Tensor:
    """Return the positions of the packed entries in the flattened k × n matrix whose rows are the Householder vectors.

    Row i, counted from 1, begins with i − 1 zeros, which are not packed.
    """
    rows, cols = torch.triu_indices(k, n, device=device)
    return rows * n + cols


def unit_rows(free: Tensor, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the packed vectors scaled to length 1, as rows of a k × n matrix, and their original lengths (k, 1).

    Raise ValueError if a vector is 0; compiled or traced code does not check this.
    """
    V = free.new_zeros(k * n).scatter(0, trapezoid(n, k, free.device), free).view(k, n)
    largest = V.detach().abs().amax(1, keepdim=True)
    if not needs_plain(free) and not largest.all():
        first = int((largest == 0).flatten().nonzero()[0]) + 1
        raise ValueError(f"Householder expects vectors that have a direction; number {first} of {k} is 0")
    V = V / largest  # so that no square overflows or underflows
    length = torch.linalg.vector_norm(V, dim=1, keepdim=True)
    return V / length, length.detach() * largest


class Householder(nn.Module):
    """Map W = H_1 H_2 … H_k,  H_i = I − 2 u_i u_iᵀ/‖u_i‖²,  u_i with i − 1 leading zeros, so W is orthogonal.

    ``reflections`` is k. W can be exactly the orthogonal matrices with det W = (−1)^k and rank(W − I) ≤ k, which leave
    n − k directions unchanged. So k = n and k = n − 1 each reach half of all orthogonal matrices: the last of n vectors
    has a single non-zero entry, and its reflection negates the last axis for any value of it, and so the determinant.
    A zero vector defines neither a reflection nor a gradient, so it raises ValueError.
    """

    kinds = ("reflector",)

    def __init__(self, size: int, reflections: int | None = None) -> None:
        super().__init__()
        self.size = check_size("Householder", size)
        if reflections is not None and not (is_integer(reflections, 1) and reflections <= size):
            raise ValueError(f"reflections counts the vectors of Householder, so 1 … {size}; got {reflections!r}")
        self.reflections = size if reflections is None else reflections

    @property
    def free_size(self) -> int:
        """Number of free parameters: the entries of all vectors without their leading zeros."""
        return self.reflections * (2 * self.size - self.reflections + 1) // 2

    @property
    def determinant(self) -> int:
        """Determinant of W, 1 or −1."""
        return (-1) ** self.reflections

    def forward(self, free: Tensor) -> Tensor:
        """Return the orthogonal W (n, n) from the packed vectors of its reflections, `free_size` numbers.

        Raise ValueError if their number is wrong or a vector is 0.
        """
        make = compact if needs_plain(free) else Reflections.apply
        return make(self._checked(free), self.size, self.reflections)

    @property
    def operator_from(self) -> int:
        """Size from which a time step is faster without forming W. With more than 16 reflections it never is."""
        return 384 if self.reflections <= 16 else 1 << 62

    def operator(self, free: Tensor) -> Operator:
        """Return a function that maps rows h (batch, n) to h Wᵀ in 2 n k multiplications per row, without forming W."""
        V, _ = unit_rows(self._checked(free), self.size, self.reflections)
        S = V @ V.mT - 0.5 * torch.eye(len(V), dtype=V.dtype, device=V.device)
        X = torch.linalg.solve_triangular(S.mT, V, upper=False)
        return lambda h: h - (h @ V.mT) @ X

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> Tensor:
        """Return the packed unit vectors whose reflections have the product W.

        A W that is not orthogonal is first replaced by an orthogonal matrix that k reflections can represent: the
        nearest one of determinant (−1)^k and, with k < n − 1, of that one the part that differs most from I. An
        orthogonal W that k reflections cannot represent raises ValueError.
        """
        check_square("Householder", W, self.size)
        eps = torch.finfo(W.dtype).eps
        I = torch.eye(self.size, dtype=torch.float64, device=W.device)
        orthogonal = is_orthogonal(W)
        U = nearest_orthogonal(W.double(), None if orthogonal else self.determinant)
        Q = torch.linalg.svd(U - I).U[:, : self.reflections]  # spans the directions that W changes, if W can be reached
        C = nearest_orthogonal(Q.mT @ U @ Q, self.determinant)  # W = I + Q (C − I) Qᵀ
        V = torch.zeros_like(U[: self.reflections])
        for i in range(self.reflections):
            w = mirror(Q[i])  # new basis, of which only the first vector is not orthogonal to e_i
            Q, C = reflected(Q, w), reflected(reflected(C, w).mT, w).mT
            v = mirror(C[:, 0])
            V[i] = Q @ v
            Q, C = Q[:, 1:], reflected(C.mT, v).mT[1:, 1:]  # e_i is done
        free = V.view(-1).index_select(0, trapezoid(self.size, self.reflections, V.device))
        if orthogonal and not (self(free) - U).abs().max() < eps**0.5:
            raise ValueError(
                f"Householder with reflections={self.reflections} cannot reach this orthogonal matrix, only those with "
                f"determinant {self.determinant} and rank(W − I) ≤ {self.reflections}; choose other reflections"
            )
        return free.to(W.dtype)

    def _checked(self, free: Tensor) -> Tensor:
        """Return ``free``, or raise ValueError if it does not have the size of the packed vectors."""
        if free.shape != (self.free_size,):
            raise ValueError(
                f"Householder of size {self.size} with {self.reflections} reflections expects {self.free_size} "
                f"numbers; got shape {tuple(free.shape)}"
            )
        return free

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}, reflections={self.reflections}"


def mirror(x: Tensor) -> Tensor:
    """Return the unit vector v whose reflection I − 2 v vᵀ maps x to ‖x‖ e_1."""
    rest, length = torch.linalg.vector_norm(x[1:]), torch.linalg.vector_norm(x)
    first = torch.where(x[0] < 0, x[0] - length, -(rest**2) / (x[0] + length))  # x_1 − ‖x‖ without cancellation
    v, last = torch.cat([first[None], x[1:]]), torch.zeros_like(x)
    last[-1] = 1
    v = torch.where(torch.linalg.vector_norm(v) > torch.finfo(x.dtype).eps, v, last)  # x is ‖x‖ e_1 already, or 0
    return v / torch.linalg.vector_norm(v)


def reflected(rows: Tensor, v: Tensor) -> Tensor:
    """Return each row reflected at v: rows (I − 2 v vᵀ) for ‖v‖ = 1."""
    return rows - 2 * torch.outer(rows @ v, v)


def normal(size: int, reflections: int, generator: Generator | None = None) -> Tensor:
    """Return random vectors for Householder reflections: the rows of a matrix (reflections, size).

    Row i, counted from 0, has i leading zeros. Its other entries are Gaussian, scaled so that the row has norm 1. These
    are the initial values of oRNN and Spectral RNN.
    """
    V = torch.randn(reflections, size, dtype=torch.float64, generator=generator).triu()
    return V / torch.linalg.vector_norm(V, dim=1, keepdim=True)


def haar(size: int, reflections: int, generator: Generator | None = None) -> Tensor:
    """Return Householder vectors, as rows (k, n), for which the first k columns of W are uniformly random.

    n is ``size`` and k is ``reflections``. This is the method of Stewart (1980). The reflection H_i maps the unit
    vector e_i to a random direction x, so its vector is u = x − e_i. With random directions u the columns would not be
    uniform: in many dimensions such a reflection hardly changes e_i.
    """
    V = normal(size, reflections, generator)
    for i, x in enumerate(V):
        x[i:] = mirror(x[i:])
    return V


STARTS = {"haar": haar, "normal": normal}


def start(name: str, map: Householder) -> Tensor:
    """Return the packed unit vectors from which a `Householder` map starts, by the initialiser "haar" or "normal".

    Raise ValueError for another name.
    """
    if name not in STARTS:
        raise ValueError(f"no initialiser {name!r} of reflections; choose from {', '.join(STARTS)}")
    V = STARTS[name](map.size, map.reflections)
    return V.view(-1)[trapezoid(map.size, map.reflections, V.device)].to(torch.get_default_dtype())


@entered("householder")
def householder(size: int, *, reflections: int | None = None, init: str = "haar") -> Matrix:
    """Return a `Matrix` with the map `Householder` of ``reflections`` vectors, by default ``size``.

    ``init`` is "haar" or "normal".
    """
    map = Householder(size, reflections)
    return Matrix(map, start(init, map))
