"""Promises that every matrix keeps. One that is added to MATRICES is tested without a line here."""

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from steadygrad.matrices import MATRICES, Matrix, ScaledCayley, build
from tests.rounding import rounding

every_matrix = pytest.mark.parametrize("name", MATRICES)
ORTHOGONAL = ["exponential", "dtriv", "cayley", "neumann", "schur", "householder", "svd"]  # at their start


def disturb(matrix: Matrix, scale: float = 0.3) -> Matrix:
    """Away from the start, where many entries are zero."""
    with torch.no_grad():
        for f in matrix.packed():
            f += scale * torch.randn_like(f)
    return matrix


def train(matrix: Matrix, steps: int, lr: float = 1e-2, between=lambda: None, optimizer=None) -> torch.optim.Optimizer:
    generator = torch.Generator().manual_seed(1)
    optimizer = optimizer or torch.optim.Adam(matrix.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        W = matrix()
        (W * torch.randn(W.shape, generator=generator, dtype=W.dtype)).sum().backward()
        optimizer.step()
        between()
    return optimizer


@every_matrix
@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_gradients_match_finite_differences(name, size, double):
    matrix = disturb(build(name, size)).eval()  # in training a rebase of dtriv would rewrite gradcheck's input

    def run(*free):
        return matrix.map(*free)

    assert torch.autograd.gradcheck(run, tuple(matrix.packed()))


@every_matrix
@given(size=st.integers(1, 9))
def test_every_size_builds_evaluates_and_learns(name, size):
    matrix = build(name, size)
    W = matrix()
    assert W.shape == (size, size)
    assert W.dtype == torch.float32
    assert matrix.size == size
    W.square().sum().backward()
    assert all(f.grad is not None and f.grad.isfinite().all() for f in matrix.free)


@pytest.mark.parametrize("name", ORTHOGONAL)
@given(size=st.integers(1, 9))
def test_initial_matrix_is_orthogonal(name, size):
    W = build(name, size)().double()
    bound = rounding(torch.float32, size, operations=4 + 2 * size)  # as many reflections as svd has
    torch.testing.assert_close(W.mT @ W, torch.eye(size, dtype=torch.float64), atol=bound, rtol=0)


@every_matrix
def test_parameter_counts_match_expected(name):
    expected = {
        "free": 64, "exponential": 28, "dtriv": 28, "cayley": 28, "neumann": 28,
        "schur": 28 + 4 + 4 + 24, "eigenvalue": 64, "longshort": 10 + 9 + 15,
        "householder": 36, "rotations": 4 + 3, "svd": 36 + 36 + 8,
    }  # fmt: skip
    assert sum(p.numel() for p in build(name, 8).parameters()) == expected[name]


@every_matrix
def test_cached_value_follows_training_and_load_state_dict(name):
    matrix = disturb(build(name, 6))
    other = disturb(build(name, 6))
    calls = []
    matrix.map.register_forward_hook(lambda *_: calls.append(1))

    def value():
        matrix.eval()
        with torch.no_grad():
            first = matrix()
            count = len(calls)
            assert matrix() is first
            assert len(calls) == count
        matrix.train()
        return first.clone()

    old = value()
    train(matrix, 1)
    stepped = value()
    assert not torch.equal(old, stepped)
    matrix.packed()[0].data[0] += 0.5  # no version counter sees this
    edited = value()
    assert not torch.equal(stepped, edited)
    matrix.load_state_dict(other.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(value(), other())


@every_matrix
def test_copies_and_pickles_are_independent(name):
    matrix = disturb(build(name, 5)).eval()
    with torch.no_grad():
        W = matrix().clone()
        assert not any("remember" in key for key in matrix.state_dict())
        for twin in (copy.deepcopy(matrix), pickle.loads(pickle.dumps(matrix))):
            torch.testing.assert_close(twin(), W)
            twin.packed()[0].add_(1.0)
            assert not torch.equal(twin(), W)
            assert torch.equal(matrix(), W)


@every_matrix
def test_double_keeps_constraint_to_double_precision(name):
    """The cast matrix keeps its constraint to double precision: it is evaluated anew, not cast."""
    matrix = disturb(build(name, 6))
    train(matrix, 3)
    matrix.double()
    twin = copy.deepcopy(matrix)
    fresh = matrix.eval()
    with torch.no_grad():
        W = fresh()
        assert W.dtype == torch.float64
        if name in ORTHOGONAL and name not in ("schur", "svd"):
            bound = rounding(torch.float64, 6, operations=10, scale=1 + float(matrix.packed()[0].norm()))
            torch.testing.assert_close(W.mT @ W, torch.eye(6, dtype=torch.float64), atol=bound, rtol=0)
    torch.testing.assert_close(twin(), W)


@every_matrix
def test_autocast_does_not_touch_the_constraint(name):
    matrix = disturb(build(name, 6))
    with torch.no_grad():
        W = matrix()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(matrix(), W)


@every_matrix
def test_bfloat16_matrix_and_gradient_dtype(name):
    matrix = disturb(build(name, 6)).bfloat16()
    W = matrix()
    assert W.dtype == torch.bfloat16
    W.float().sum().backward()
    assert matrix.free[0].grad.dtype == torch.bfloat16


@every_matrix
def test_inference_mode_evaluations_do_not_change_training(name):
    matrix = disturb(build(name, 6))
    twin = copy.deepcopy(matrix)

    def look():
        matrix.eval()
        with torch.inference_mode():
            matrix()
        matrix.train()

    look()
    train(matrix, 5, between=look)
    train(twin, 5)
    for a, b in zip(matrix.packed(), twin.packed(), strict=True):
        assert torch.equal(a, b)


@every_matrix
def test_training_resumed_from_state_dict_is_bitwise_equal(name):
    matrix = disturb(build(name, 6))
    optimizer = train(matrix, 7)
    file = io.BytesIO()
    torch.save({"matrix": matrix.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = build(name, 6)
    resumed.load_state_dict(saved["matrix"])
    again = torch.optim.Adam(resumed.parameters(), lr=1e-2)
    again.load_state_dict(saved["optimizer"])
    train(matrix, 60, optimizer=optimizer)
    train(resumed, 60, optimizer=again)
    assert torch.equal(matrix(), resumed())


@every_matrix
def test_state_is_contiguous(name):
    """As safetensors demands."""
    matrix = build(name, 6)
    train(matrix, 3)
    assert all(value.is_contiguous() for value in matrix.state_dict().values())


@every_matrix
def test_non_finite_parameters_raise_value_error(name):
    matrix = build(name, 8)
    which = 0
    with torch.no_grad():
        matrix.packed()[which].view(-1)[[0, 3, 5]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    shape = tuple(matrix.free[which].shape)
    with pytest.raises(
        ValueError, match=f"expects finite parameters; got 3 NaN or infinite values in {matrix.names[which]}"
    ) as e:
        matrix()
    assert type(matrix.map).__name__ in str(e.value)
    assert str(shape) in str(e.value)


def test_huge_finite_parameters_are_accepted():
    matrix = Matrix(ScaledCayley(3), torch.full((3,), 3e38))
    matrix()


def test_build_accepts_tables_functions_and_matrices():
    assert build({"name": "cayley", "reflections": 3}, 5).map.reflections == 3
    assert build({"name": "dtriv", "rebase_every": 7}, 5).map.rebase_every == 7
    assert build("dtriv", 5).map.rebase_every == 100
    matrix = build(lambda size: Matrix(ScaledCayley(size, 1), torch.zeros(10)), 5)
    assert matrix.map.reflections == 1
    assert build(matrix, 5) is matrix
    parts = build({"name": "longshort", "coupling": False}, 10).map
    assert (parts.long_size, parts.short_size, parts.long.reflections) == (6, 4, 2)
    paper = build("longshort", 160).map  # the ENRNN paper's adding problem
    assert (paper.long_size, paper.short_size, paper.long.reflections) == (96, 64, 29)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("caley", ["no matrix 'caley'", "cayley", "longshort"]),
        ({"name": "caley"}, ["no matrix 'caley'", "neumann"]),
        ({"reflections": 1}, ["no matrix None"]),
        ({"name": ["cayley"]}, ["no matrix ['cayley']"]),
        ({"name": "cayley", "reflection": 1}, ["'cayley' has no option 'reflection'", "reflections, init"]),
        ({"name": "cayley", "size": 1}, ["no option 'size'"]),
        ({"name": "cayley", "init": "hennaf"}, ["no initialiser 'hennaf'", "henaff", "haar"]),
        ({"name": "cayley", "init": 3}, ["no initialiser 3"]),
        ({"name": "cayley", "reflections": 6}, ["0 … 5; got 6"]),
        ({"name": "cayley", "reflections": 1.5}, ["0 … 5; got 1.5"]),
        ({"name": "neumann", "order": 4}, ["order of 1, 2 or 3; got 4"]),
        ({"name": "neumann", "reset_every": 0}, ["reset_every", "got 0"]),
        ({"name": "neumann", "exact_above": 1.5}, ["exact_above", "got 1.5"]),
        ({"name": "neumann", "exact_above": "x"}, ["exact_above", "got 'x'"]),
        ({"name": "eigenvalue", "epsilon": -1e-3}, ["epsilon", "got -0.001"]),
        ({"name": "eigenvalue", "epsilon": float("nan")}, ["epsilon", "got nan"]),
        ({"name": "longshort", "short_size": 6}, ["0 … 5; got 6"]),
        ({"name": "longshort", "short_size": "2"}, ["0 … 5; got '2'"]),
        ({"name": "longshort", "reflections": 4}, ["0 … 3; got 4"]),
        (3, ["got 3"]),
        (None, ["got None"]),
        (ScaledCayley, ["must return a Matrix", "gave a ScaledCayley"]),
        (Matrix(ScaledCayley(4), torch.zeros(6)), ["size 5 is needed", "got one of size 4"]),
        (lambda size: build("free", size + 1), ["got one of size 6"]),
    ],
)
def test_invalid_specs_raise_value_error(spec, words):
    with pytest.raises(ValueError, match=r".") as e:
        build(spec, 5)
    assert all(word in str(e.value) for word in words), str(e.value)


@every_matrix
@pytest.mark.parametrize("size", [0, -1, 2.0, "5", True])
def test_invalid_sizes_raise_value_error(name, size):
    with pytest.raises(ValueError, match="size of at least 1; got"):
        build(name, size)
    if not isinstance(size, str):
        with pytest.raises(ValueError, match="at least"):
            MATRICES[name](0)


def test_size_is_inferred_for_map_without_size_attribute():
    class Twice(nn.Module):
        def forward(self, M):
            return 2 * M

    assert Matrix(Twice(), torch.eye(3)).size == 3
