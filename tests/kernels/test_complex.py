"""Complex modReLU: C = Python = reference = torch's complex arithmetic, and stepping by an operator = by its matrix."""

import itertools

import pytest
import torch
from torch import Tensor

from steadygrad.kernels import (
    COMPLEX_MODRELU,
    ElmanInputs,
    Steps,
    complex_modrelu,
    elman_unroll,
    native,
    operator_unroll,
)
from steadygrad.kernels.backend import VARIABLE
from tests.backends import every_backend, needs_c
from tests.rounding import assert_same, rounding

DTYPES = (torch.float64, torch.float32)
FORMS = {
    "even": Steps((3, 3, 3, 3)),
    "packed": Steps((5, 4, 4, 1)),
    "packed, reversed": Steps((5, 4, 4, 1), reverse=True),
    "even, reversed": Steps((2, 2, 2), reverse=True),
}
BIASES = {
    "none": lambda units: None,
    "small": lambda units: 0.02 * torch.randn(units, dtype=torch.float64),
    "raising": lambda units: 0.5 * torch.rand(units, dtype=torch.float64),
    "silencing": lambda units: -4 * torch.rand(units, dtype=torch.float64),
}

every_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_form = pytest.mark.parametrize("steps", FORMS.values(), ids=FORMS)
every_bias = pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
fast_backends = pytest.mark.parametrize("backend", [pytest.param("c", marks=needs_c), "python"])


def tensors(units: int, inputs: int, steps: Steps, bias, dtype=torch.float64) -> list[Tensor | None]:
    """x, U, W, bias, initial; a W without any complex structure, so that nothing is hidden by symmetry."""
    N = 2 * units
    values = [
        torch.randn(steps.rows, inputs, dtype=torch.float64),
        torch.randn(N, inputs, dtype=torch.float64),
        0.7 * torch.randn(N, N, dtype=torch.float64) / N**0.5,
        bias(units),
        torch.randn(steps.batch, N, dtype=torch.float64),
    ]
    return [None if v is None else v.to(dtype) for v in values]


def unroll(x, U, W, bias, initial, steps: Steps) -> Tensor:
    return elman_unroll(ElmanInputs(x, U, W, bias, initial, COMPLEX_MODRELU, steps))


def solve(run, values: list[Tensor | None], steps: Steps, backend: str = "auto") -> list[Tensor]:
    """States, and the gradients of a random linear function of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, backend)
        leaves = [None if v is None else v.detach().clone().requires_grad_() for v in values]
        states = run(*leaves, steps)
        generator = torch.Generator().manual_seed(1)
        weights = torch.randn(states.shape, generator=generator, dtype=torch.float64).to(states.dtype)
        (states * weights).sum().backward()
    return [states.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]


def bound(values: list[Tensor | None], states: Tensor, steps: Steps) -> float:
    """Each step, there and back, adds a sum over inputs and units, each gradient of a weight one over all rows.

    A bias b > 0 makes z/|z| (|z| + b) of z, which stretches an error by (|z| + b)/|z|, and the gradient's once more.
    """
    x, U, W, b, _ = values
    sizes = torch.linalg.vector_norm(states.view(len(x), 2, -1), dim=1)  # |h| = |z| + b
    b = torch.zeros(1, dtype=x.dtype) if b is None else b
    stretch = (sizes / (sizes - b)).where((b > 0) & (sizes > 0), 1.0).max().item()
    return rounding(x.dtype, U.shape[1] + 2 * W.shape[1] + len(x), operations=2 * len(steps.sizes), scale=stretch**2)


@needs_c
@every_type
@every_bias
def test_three_paths_agree_for_every_number_of_units(bias, dtype):
    """1 … 33 units: every remainder of every vector length, in all four layouts, the last on two threads."""
    for units, steps in zip(range(1, 34), itertools.cycle(FORMS.values())):
        torch.set_num_threads(2 if units == 33 else 1)
        values = tensors(units, 1 + units % 5, steps, bias, dtype)
        expected = solve(unroll, values, steps, "reference")
        for backend in ("c", "python"):
            assert_same(solve(unroll, values, steps, backend), expected, bound(values, expected[0], steps))


@needs_c
@every_type
@pytest.mark.parametrize("isa", range(3), ids=native.INSTRUCTION_SETS)
def test_every_instruction_set_agrees(isa, dtype):
    library = native.library()
    try:
        if library.steadygrad_set_isa(isa) != isa:
            pytest.skip(f"this machine has no {native.INSTRUCTION_SETS[isa]}")
        steps = Steps((19, 19, 11, 3))
        values = tensors(37, 5, steps, BIASES["silencing"], dtype)
        expected = solve(unroll, values, steps, "reference")
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert_same(solve(unroll, values, steps, "c"), expected, bound(values, expected[0], steps))
    finally:
        library.steadygrad_set_isa(-1)


def test_silencing_bias_zeroes_some_units():
    """Or the test above would not see the branch that it is for."""
    steps = FORMS["packed"]
    states = solve(unroll, tensors(20, 3, steps, BIASES["silencing"]), steps, "reference")[0]
    silent = (states == 0).view(-1, 2, 20)
    assert torch.equal(silent[:, 0], silent[:, 1])  # real and imaginary part fall silent together
    assert 0.1 < silent.double().mean() < 0.9


@every_backend
@every_form
@every_bias
def test_unroll_matches_torch_complex_arithmetic(backend, steps, bias):
    """h ← z/|z| · relu(|z| + b), z = U x + W h, all in torch.complex128, gradients by torch."""
    units = 6
    x, U, _, b, initial = tensors(units, 3, steps, bias)
    W = 0.8 * torch.randn(units, units, dtype=torch.complex128) / units**0.5

    def complex_loop(x, U, W, b, initial, steps):
        U, start = torch.complex(*U.chunk(2)), torch.complex(*initial.chunk(2, dim=1))
        inputs = (x.to(U.dtype) @ U.mT).split(steps.sizes)
        states, h = {}, start[:0]
        for t in steps.order():
            size = steps.sizes[t]
            z = inputs[t] + torch.cat([h, start[len(h) : size]])[:size] @ W.mT
            h = z / z.abs() * (z.abs() + (0 if b is None else b)).relu()
            states[t] = h
        h = torch.cat([states[t] for t in range(len(steps.sizes))])
        return torch.cat([h.real, h.imag], dim=1)

    realified = torch.cat([torch.cat([W.real, -W.imag], dim=1), torch.cat([W.imag, W.real], dim=1)])
    values = [x, U, W, b, initial]
    expected = solve(complex_loop, values, steps)
    got = solve(unroll, [x, U, realified, b, initial], steps, backend)
    (rr, ri), (ir, ii) = (rows.chunk(2, dim=1) for rows in got[3].chunk(2))
    got[3] = torch.complex(rr + ii, ir - ri)  # the four blocks of the real matrix are two of the complex one
    assert_same(got, expected, bound(values, expected[0], steps))


def test_complex_modrelu_known_values():
    """3 + 4i has the modulus 5, and modReLU changes nothing else."""
    z = torch.tensor([[3.0, -3.0, 0.0, 4.0, 4.0, -2.0]], dtype=torch.float64)
    b = torch.tensor([-2.5, -5.0, 1.0], dtype=torch.float64)
    assert complex_modrelu(z, b).tolist() == [[1.5, 0, 0, 2, 0, -3]]
    assert complex_modrelu(torch.zeros(1, 2), torch.ones(1)).tolist() == [[0, 0]]  # no direction to go


@fast_backends
@every_bias
@pytest.mark.parametrize("steps", [Steps((3, 2, 2)), Steps((3, 2, 1), reverse=True)], ids=["forward", "reversed"])
def test_gradcheck(backend, bias, steps, monkeypatch):
    monkeypatch.setenv(VARIABLE, backend)
    values = tensors(3, 2, steps, bias)
    present = [v.requires_grad_() for v in values if v is not None]

    def run(*given):
        left = iter(given)
        return unroll(*(None if v is None else next(left) for v in values), steps)

    assert torch.autograd.gradcheck(run, present)


@every_backend
@every_type
@pytest.mark.parametrize("b", [None, 0.0, 0.5, -0.5])
def test_unit_at_zero_stays_zero_without_gradient(backend, dtype, b):
    """A unit whose z is exactly 0 stays there, and neither hands on a gradient nor asks for a bias."""
    steps, units = Steps.padded(3, 4), 5
    quiet = torch.tensor([1, 4])
    rows = torch.cat([quiet, quiet + units])
    x, U, W, _, initial = tensors(units, 2, steps, BIASES["none"], dtype)
    U[rows], W[rows] = 0, 0
    bias = None if b is None else torch.full((units,), b, dtype=dtype)
    states, _, d_U, d_W, *d_bias, _ = solve(unroll, [x, U, W, bias, initial], steps, backend)
    assert not states[:, rows].any()
    assert states[:, [0, 2, 3]].any()
    assert not d_U[rows].any()
    assert not d_W[rows].any()
    assert d_W.isfinite().all()
    for gradient in d_bias:
        assert not gradient[quiet].any()
        assert gradient.isfinite().all()


@every_backend
@every_type
def test_zero_input_and_state_give_zero_gradients(backend, dtype):
    """No input, no state: what a network sees before a sequence begins in earnest."""
    steps = Steps.padded(3, 2)
    x, U, W, bias, initial = tensors(4, 2, steps, BIASES["small"], dtype)
    results = solve(unroll, [x.zero_(), U, W, bias, initial.zero_()], steps, backend)
    assert all(not r.any() for r in results)  # NaN would count as true


@fast_backends
def test_almost_zero_below_a_positive_bias_has_a_finite_gradient(backend):
    """|y|/|z| is huge there, and |z| = |y| − b is lost to rounding: not to infinity, nor to the wrong sign."""
    units, dtype = 64, torch.float32
    angles = torch.linspace(0, 6, units)
    sizes = torch.logspace(-10, -6, units)
    U = torch.cat([sizes * angles.cos(), sizes * angles.sin()])[:, None].to(dtype)
    bias = torch.full((units,), 0.5, dtype=dtype)
    W, initial = torch.zeros(2 * units, 2 * units), torch.zeros(1, 2 * units)
    values = [torch.ones(1, 1), U, W, bias, initial]
    got, expected = (solve(unroll, values, Steps.padded(1, 1), b) for b in (backend, "reference"))
    torch.testing.assert_close(got[0], expected[0])
    d_U, exact = got[2], expected[2]
    assert d_U.isfinite().all()
    assert (d_U * exact >= 0).all()


@every_backend
def test_nan_input_propagates_within_its_sequence(backend):
    """A run that diverges must look diverged."""
    steps = Steps.padded(3, 2)
    values = tensors(4, 2, steps, BIASES["small"], torch.float32)
    values[0][1, 0] = torch.nan  # second sequence, first step
    states = solve(unroll, values, steps, backend)[0].view(3, 2, 8)
    assert states[:, 1].isnan().all()
    assert not states[:, 0].isnan().any()


@every_backend
@pytest.mark.parametrize("part", [0, 1], ids=["real", "imaginary"])
def test_nan_in_one_part_is_nan_in_both(backend, part):
    """As in complex arithmetic: a z that is no number has no direction either."""
    steps, units = Steps.padded(1, 1), 3
    x, U, W, bias, initial = tensors(units, 2, steps, BIASES["small"])
    U[part * units + 1] = torch.nan
    states = solve(unroll, [x, U, W, bias, initial], steps, backend)[0].view(2, units)
    assert states.isnan().tolist() == [[False, True, False]] * 2


@every_backend
def test_nan_bias_propagates(backend):
    steps, units = Steps.padded(1, 1), 3
    x, U, W, bias, initial = tensors(units, 2, steps, BIASES["small"])
    bias[2] = torch.nan
    states = solve(unroll, [x, U, W, bias, initial], steps, backend)[0].view(2, units)
    assert states.isnan().tolist() == [[False, False, True]] * 2


@every_form
@every_bias
@every_type
def test_operator_is_its_matrix(steps, bias, dtype):
    """h → h Wᵀ by a function, against the same W in real form: values and all gradients."""
    units = 7
    x, U, _, b, initial = tensors(units, 3, steps, bias, dtype)
    W = (0.8 * torch.randn(units, units, dtype=torch.complex128) / units**0.5).to(dtype.to_complex())

    def by_operator(x, U, W, b, initial, steps):
        return operator_unroll(x, U, lambda h: h @ W.mT, b, initial, COMPLEX_MODRELU, steps)

    def by_matrix(x, U, W, b, initial, steps):
        real = torch.cat([torch.cat([W.real, -W.imag], dim=1), torch.cat([W.imag, W.real], dim=1)])
        return unroll(x, U, real, b, initial, steps)

    values = [x, U, W, b, initial]
    expected = solve(by_matrix, values, steps, "reference")
    assert_same(solve(by_operator, values, steps), expected, bound(values, expected[0], steps))
    assert_same(solve(by_matrix, values, steps), expected, bound(values, expected[0], steps))


def test_operator_is_called_once_a_step_with_complex_rows():
    seen = []
    steps = FORMS["packed, reversed"]
    x, U, _, b, initial = tensors(4, 3, steps, BIASES["small"])

    def operator(h):
        seen.append((tuple(h.shape), h.dtype))
        return h

    operator_unroll(x, U, operator, b, initial, COMPLEX_MODRELU, steps)
    assert seen == [((size, 4), torch.complex128) for size in (1, 4, 4, 5)]
