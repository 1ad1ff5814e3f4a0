"""Every map as a parametrization of torch: registered on modules of torch, trained, assigned, saved and loaded."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from steadygrad.matrices import COMPLEX, MATRICES, Householder, build, orthogonality_error, spectral_radius
from tests.rounding import rounding

N = 8  # real units; 4 complex units
NAMES = [*MATRICES, *COMPLEX]
every_map = pytest.mark.parametrize("name", NAMES)
every_complex_map = pytest.mark.parametrize("name", COMPLEX)
PRECISION = [torch.float32, torch.float64]


def register(module, name, weight="weight"):
    """The map of the registry, in its real form, on a weight of a module that is not changed before."""
    size = getattr(module, weight).shape[0]
    return parametrize.register_parametrization(module, weight, build(name, size).map)


def free_tensors(module, weight="weight"):
    held = module.parametrizations[weight]
    return [held.original] if held.is_tensor else [getattr(held, f"original{i}") for i in range(held.ntensors)]


def defect(name, W):
    """How far W is from the constraint of the map of this name; 0 if the map has none."""
    W = W.detach()
    match name:
        case "free" | "complex-schur" | "schur":  # constraints on the spectrum only, by parameters that are free
            return 0.0
        case "eigenvalue" | "longshort":
            return max(0.0, spectral_radius(W) - 1)
        case "svd":
            return float((torch.linalg.svdvals(W.double()) - 1).abs().max().sub(0.01).clamp_min(0))
    return orthogonality_error(W)


def bound(dtype, name=""):
    """A solve, two products and a polish for a matrix with the condition number 1000, which no start here exceeds.

    A Neumann series may leave W farther from orthogonal, by ``max_drift`` √n according to an estimate.
    """
    drift = 2 * 4e-6 * N**0.5 if name == "neumann" else 0.0
    return rounding(dtype, N, operations=4, scale=1000) + drift


@every_map
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("make", [nn.Linear, nn.RNNCell])
def test_default_weight_becomes_constrained_and_stays_so_in_training(name, dtype, optimizer, make):
    weight = "weight" if make is nn.Linear else "weight_hh"
    module = register(make(N, N, dtype=dtype), name, weight)
    assert defect(name, getattr(module, weight)) < bound(dtype, name)
    x, target = torch.randn(5, 3, N, dtype=dtype), torch.randn(3, N, dtype=dtype)
    before = [f.detach().clone() for f in free_tensors(module, weight)]
    descent = optimizer(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        descent.zero_grad()
        with parametrize.cached():
            h = torch.zeros(3, N, dtype=dtype)
            for row in x:
                h = module(row) + 0.5 * h if make is nn.Linear else module(row, h)
        loss = (h - target).square().sum()
        loss.backward()
        descent.step()
        losses.append(loss.item())
        W = getattr(module, weight)
        assert W.dtype == dtype
        assert W.shape == (N, N)
        assert defect(name, W) < bound(dtype, name)
    assert losses[-1] < losses[0]
    moved = [not torch.equal(a, b) for a, b in zip(before, free_tensors(module, weight), strict=True)]
    assert any(moved) or name == "stiefel"  # stiefel moves its base, and its free tensor returns to 0
    assert all(f.grad is not None and f.grad.any() for f in free_tensors(module, weight) if f.numel())


@every_map
@pytest.mark.parametrize("dtype", PRECISION)
def test_assigning_a_value_of_the_map_is_exact(name, dtype):
    """Registered on such a value, and assigned later, after changes of the free tensors."""
    matrix = build(name, N).to(dtype)
    W = matrix().detach()
    module = nn.Linear(N, N, dtype=dtype)
    with torch.no_grad():
        module.weight.copy_(W)
    parametrize.register_parametrization(module, "weight", copy.deepcopy(matrix.map))
    torch.testing.assert_close(module.weight, W, rtol=0, atol=bound(dtype))
    with torch.no_grad():
        for f in free_tensors(module):
            f.add_(0.1 * torch.randn_like(f))
    W = module.weight.detach().clone()
    with torch.no_grad():
        for f in free_tensors(module):
            f.copy_(f + 0.1)
    assert not torch.allclose(module.weight, W, rtol=0, atol=1e-3) or name == "stiefel"
    module.weight = W
    torch.testing.assert_close(module.weight, W, rtol=0, atol=bound(dtype))


@every_map
def test_state_dict_copy_and_removal(name):
    torch.manual_seed(1)
    module = register(nn.Linear(N, N), name)
    descent = torch.optim.SGD(module.parameters(), lr=1e-2)
    module(torch.randn(4, N)).square().sum().backward()
    descent.step()
    module(torch.randn(4, N))  # a map that moves its base does so now
    torch.manual_seed(2)
    other = register(nn.Linear(N, N), name)
    assert not torch.equal(other.weight, module.weight)
    other.load_state_dict(module.state_dict())
    twin = copy.deepcopy(module)
    W = module.weight.detach().clone()
    close = {"rtol": 0, "atol": bound(torch.float32)}
    torch.testing.assert_close(other.weight.detach(), W, **close)
    torch.testing.assert_close(twin.weight.detach(), W, **close)
    twin.weight.sum().backward()
    parametrize.remove_parametrizations(module, "weight")
    assert type(module) is nn.Linear
    assert isinstance(module.weight, nn.Parameter)
    torch.testing.assert_close(module.weight.detach(), W, **close)


@every_complex_map
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_maps_take_complex_weights(name, dtype):
    module = nn.Linear(4, 4, bias=False, dtype=dtype)
    matrix = build(name, 4, complex=True)
    parametrize.register_parametrization(module, "weight", matrix.map)
    real = torch.finfo(dtype).dtype
    assert module.weight.dtype == dtype
    assert all(f.dtype == getattr(torch, real) for f in free_tensors(module))
    assert defect(name, module.weight) < bound(dtype, name)
    descent = torch.optim.SGD(module.parameters(), lr=1e-2)
    x, y = torch.randn(2, 6, 4, dtype=dtype)
    losses = []
    for _ in range(5):
        loss = (module(x) - y).abs().square().sum()
        descent.zero_grad()
        loss.backward()
        descent.step()
        losses.append(loss.item())
        assert defect(name, module.weight) < bound(dtype, name)
    assert losses[-1] < losses[0]
    W = matrix().detach().to(dtype)
    module.weight = W
    torch.testing.assert_close(module.weight.detach(), W, rtol=0, atol=max(bound(dtype), bound(torch.float32)))


UNREACHABLE = {
    "exponential": "determinant is −1",
    "dtriv": "determinant is −1",
    "cayley": "choose other reflections",
    "neumann": "choose other reflections",
    "householder": "cannot reach",  # of an even number of reflections the determinant is 1
    "rotations": "determinant is 1",
    "svd": "its determinant is negative",
    "givens": "choose style='full'",
}
"""what the error of a map says about an orthogonal matrix that it cannot represent; the other maps represent each"""


@pytest.mark.parametrize("name", NAMES)
def test_orthogonal_weight_is_exact_or_raises_value_error(name):
    """A reflection: orthogonal, but out of reach of maps that are made of rotations."""
    generator = torch.Generator().manual_seed(3)
    W = torch.linalg.qr(torch.randn(N, N, dtype=torch.float64, generator=generator)).Q
    W[0] *= -torch.linalg.det(W).sign()
    map = build(name, N).map
    module = nn.Linear(N, N, dtype=torch.float64)
    if name in COMPLEX and name != "complex-schur" and name not in UNREACHABLE:
        W = map(*map.right_inverse(W)).detach()  # a real form
    if name in COMPLEX and name in UNREACHABLE:
        Z = torch.linalg.qr(torch.randn(4, 4, dtype=torch.complex128, generator=generator)).Q
        W = torch.cat([torch.cat([Z.real, -Z.imag], dim=1), torch.cat([Z.imag, Z.real], dim=1)])
    module.weight.data.copy_(W)
    if name in UNREACHABLE:
        with pytest.raises(ValueError, match=UNREACHABLE[name]):
            parametrize.register_parametrization(module, "weight", map)
    elif name not in ("schur", "longshort", "complex-schur"):  # W keeps no constraint of theirs, so it is projected
        parametrize.register_parametrization(module, "weight", map)
        torch.testing.assert_close(module.weight.detach(), W, rtol=0, atol=bound(torch.float64))


@pytest.mark.parametrize("reflections", [1, 3, 7, 8])
def test_householder_projects_a_weight_that_is_not_orthogonal(reflections):
    map = Householder(N, reflections)
    module = parametrize.register_parametrization(nn.Linear(N, N), "weight", map)
    W = module.weight.detach().double()
    assert orthogonality_error(W) < bound(torch.float32)
    assert torch.linalg.matrix_rank(W - torch.eye(N), atol=1e-4) <= reflections
