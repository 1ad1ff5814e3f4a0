"""Complex matrices in real arithmetic: W acts on (Re h, Im h) as [[Re W, −Im W], [Im W, Re W]]."""

from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.matrices.matrix import Matrix, check_square, index_of


def realify(W: Tensor) -> Tensor:
    """Return the real form [[Re W, −Im W], [Im W, Re W]], (2n, 2n), of W (n, n).

    The real form of a unitary W is orthogonal, that of a skew-Hermitian W skew-symmetric. A W of real dtype is allowed.
    """
    if not W.is_complex():
        return torch.block_diag(W, W)
    return torch.cat([torch.cat([W.real, -W.imag], dim=1), torch.cat([W.imag, W.real], dim=1)])


def complexify(R: Tensor) -> Tensor:
    """Return the complex W (n, n) from its real form R = realify(W), (2n, 2n). Only the left half of R is read."""
    n = len(R) // 2
    return torch.complex(R[:n, :n], R[n:, :n])


def skew_hermitian_free(A: Tensor) -> Tensor:
    """Return a skew-Hermitian A packed into n² real numbers: Re A below the diagonal, then Im A on and below it."""
    n = len(A)
    return torch.cat([A.real[tuple(below(n, -1, A.device))], A.imag[tuple(below(n, 0, A.device))]])


def skew_hermitian(free: Tensor, n: int) -> Tensor:
    """Return the real form, realify(A), of a skew-Hermitian A = −Aᴴ from its n² packed numbers.

    The result is (2n, 2n). Raise ValueError unless ``free`` has n² numbers.
    """
    if free.shape != (n * n,):
        raise ValueError(f"skew_hermitian expects {n * n} numbers for size {n}; got shape {tuple(free.shape)}")
    real, imaginary = free.split([n * (n - 1) // 2, n * (n + 1) // 2])
    S = free.new_zeros(n, n).index_put(tuple(below(n, -1, free.device)), real)
    K = free.new_zeros(n, n).index_put(tuple(below(n, 0, free.device)), imaginary)
    S, K = S - S.mT, K + K.tril(-1).mT
    return torch.cat([torch.cat([S, -K], dim=1), torch.cat([K, S], dim=1)])


@index_of
def below(n: int, offset: int, device: torch.device) -> Tensor:
    """Return the row and column indices (2, count) of the lower triangle of an n × n matrix up to diagonal ``offset``.

    0 is the main diagonal, −1 the one below.
    """
    return torch.tril_indices(n, n, offset, device=device)


class Realified(nn.Module):
    """Map of the real form [[Re W, −Im W], [Im W, Re W]] of a complex map's W, for cells of real units."""

    inner: Any

    def __init__(self, map: nn.Module) -> None:
        super().__init__()
        self.inner = map
        self.size = 2 * self.inner.size

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each free tensor, as the complex map declares it."""
        return self.inner.kinds

    def forward(self, *free: Tensor) -> Tensor:
        """Return the real form of the complex map's W, from its free tensors."""
        return realify(self.inner(*free))

    def right_inverse(self, R: Tensor) -> tuple[Tensor, ...]:
        """Return the free tensors, a tuple, of the complex W whose real form is R (2n, 2n), by the complex map.

        An R that is no real form is first replaced by the nearest one.
        """
        n = len(check_square("Realified", R, self.size)) // 2
        parts = R[:n, :n] + R[n:, n:], R[n:, :n] - R[:n, n:]
        return self.inner.right_inverse(torch.complex(*(part / 2 for part in parts)))


def realified(matrix: Matrix) -> Matrix:
    """Turn a complex `Matrix` into that of its real form, in place, with the same free tensors, and return it."""
    matrix.map = Realified(matrix.map)
    return matrix


def phases(angles: Tensor) -> Tensor:
    """Return e^{iθ} of each angle θ, as a complex tensor."""
    return torch.polar(torch.ones_like(angles), angles)


def haar_unitary(size: int) -> Tensor:
    """Return a uniformly (Haar) distributed random unitary matrix, a complex tensor (size, size)."""
    Z = torch.randn(size, size, dtype=torch.complex128)
    Q, R = torch.linalg.qr(Z)
    return (Q * R.diagonal().sgn()).to(torch.get_default_dtype().to_complex())


def nearest_unitary(W: Tensor) -> Tensor:
    """Return the unitary matrix nearest to W, detached and as complex128. Raise ValueError if W is not finite."""
    if not W.is_meta and not W.isfinite().all():
        raise ValueError(
            f"nearest_unitary expects finite entries; got {int((~W.isfinite()).sum())} NaN or infinite values"
        )
    U, _, Vh = torch.linalg.svd(W.detach().to(torch.complex128))
    return U @ Vh
