"""What each unitary parametrisation can learn to be: full capacity reaches a random target, 7 n numbers do not."""

import pytest
import torch

from steadygrad.matrices import Matrix, build
from steadygrad.matrices.complex import haar_unitary

N = 16


def residuals(W: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Their squares add up to ‖W − target‖_F²."""
    return torch.view_as_real(W - target).flatten()


def error(matrix: Matrix, target: torch.Tensor) -> float:
    """‖W − target‖_F; two random unitary matrices are about √(2 n) = 5.7 apart."""
    with torch.no_grad():
        return float(residuals(matrix(), target).norm())


def learn(matrix: Matrix, target: torch.Tensor, steps: int, lr: float, smoothing: float = 0.999) -> float:
    """Adam on ‖W − target‖_F², its rate going to zero on a cosine."""
    optimizer = torch.optim.Adam(matrix.parameters(), lr=lr, betas=(0.9, smoothing))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        residuals(matrix(), target).square().sum().backward()
        optimizer.step()
        schedule.step()
    return error(matrix, target)


def learn_by_curvature(matrix: Matrix, target: torch.Tensor, steps: int, goal: float) -> float:
    """Levenberg and Marquardt on ‖W − target‖_F², for angles that Adam needs tens of thousands of updates for."""
    shapes = [f.shape for f in matrix.packed()]
    lengths = [f.numel() for f in matrix.packed()]

    def run(p: torch.Tensor) -> torch.Tensor:
        free = (part.view(shape) for part, shape in zip(p.split(lengths), shapes, strict=True))
        return residuals(matrix.map(*free), target)

    p = torch.cat([f.detach().flatten() for f in matrix.packed()])
    damping, r = 1e-2, run(p)
    for _ in range(steps):
        J = torch.func.jacrev(run)(p)
        while damping < 1e6:
            new = p - torch.linalg.solve(J.mT @ J + damping * torch.eye(len(p)), J.mT @ r)
            if (better := run(new)).norm() < r.norm():
                p, r, damping = new, better, damping / 3
                break
            damping *= 3
        if damping >= 1e6 or r.norm() < goal:
            break
    return float(r.norm())


@pytest.mark.parametrize("seed", range(2))
def test_stiefel_learns_any_unitary_matrix(seed):
    """The loss has no minimum on the manifold but the target."""
    torch.manual_seed(seed)
    target = haar_unitary(N)
    assert learn(build("stiefel", N, complex=True), target, steps=200, lr=0.1) < 1e-3


@pytest.mark.parametrize("seed", range(2))
def test_complex_cayley_learns_any_unitary_matrix(seed):
    """Slowly where W D⁻¹ has to have an eigenvalue near −1: of ten seeds, two need more than these 600 updates."""
    torch.manual_seed(seed)
    target = haar_unitary(N)
    assert learn(build("complex-cayley", N, complex=True), target, steps=600, lr=0.05, smoothing=0.95) < 1e-3


def test_full_capacity_givens_learns_any_unitary_matrix(double):
    torch.manual_seed(6)
    target = haar_unitary(N)
    matrix = build({"name": "givens", "style": "full"}, N, complex=True)
    assert learn_by_curvature(matrix, target, steps=150, goal=1e-4) < 1e-3


def test_evolution_cannot_learn_random_unitary_matrix(double):
    """The best of several starts, by either way to learn, is about halfway."""
    target = haar_unitary(N)
    errors = [learn(build("evolution", N, complex=True), target, steps=300, lr=0.1) for _ in range(3)]
    errors.append(learn_by_curvature(build("evolution", N, complex=True), target, steps=30, goal=1e-4))
    assert min(errors) > 2
    assert max(errors) < 4  # it does learn what it can: it started at 5.7


def test_evolution_learns_nearby_matrix_of_its_own_form(double):
    """The same training on a target of its own kind, a little way off, gets there: it is reach that is missing."""
    matrix = build("evolution", N, complex=True)
    target = matrix().detach()
    with torch.no_grad():
        for f in matrix.packed():
            f += 0.1 * torch.randn_like(f)
    assert error(matrix, target) > 0.3
    assert learn(matrix, target, steps=300, lr=0.02) < 1e-3


def reachable_dimension(name: str, size: int) -> int:
    """Of the set of matrices that a parametrisation reaches, at a random point of it."""
    matrix = build(name, size, complex=True).eval()
    free = tuple(torch.randn_like(f) for f in matrix.packed())
    zero = torch.zeros(size, size, dtype=torch.complex128)
    J = torch.autograd.functional.jacobian(lambda *free: residuals(matrix.map(*free), zero), free)
    return int(torch.linalg.matrix_rank(torch.cat([j.flatten(1) for j in J], dim=1), rtol=1e-9))


@pytest.mark.parametrize("name", ["stiefel", "complex-cayley"])
def test_full_capacity_maps_have_n_squared_dimensions(name, double):
    assert reachable_dimension(name, 6) == 36
    assert reachable_dimension(name, 9) == 81


def test_evolution_has_at_most_7n_minus_6_dimensions(double):
    """7 n < n² for n > 7; six go nowhere: length and phase of two reflectors, two phases that all D share."""
    for size in (9, N):
        assert size**2 > 7 * size
        assert reachable_dimension("evolution", size) <= 7 * size - 6
