"""Products of plane rotations: against explicit matrices, their layouts, their counts, and how much they reach."""

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.matrices import Givens, build
from steadygrad.matrices.givens import fourier_layout, tunable_layout
from tests.rounding import rounding

SIZES = [1, 2, 3, 5, 8, 12]
every_size = pytest.mark.parametrize("size", SIZES)
STYLES = {"2 layers": {"capacity": 2}, "5 layers": {"capacity": 5}, "full": {"style": "full"}, "fft": {"style": "fft"}}
every_style = pytest.mark.parametrize("options", STYLES.values(), ids=STYLES)


def rotation_block(theta: float, phi: float) -> np.ndarray:
    """What a rotation does to its pair, as the docstring of `Givens` says."""
    turn = np.diag([np.exp(1j * phi), 1])
    return turn @ np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])


def dense_in_numpy(map: Givens, theta: torch.Tensor, phi: torch.Tensor, omega: torch.Tensor) -> np.ndarray:
    """F_L … F_1 D by products of n × n matrices, one a rotation."""
    n = map.size
    pairs = fourier_layout(n) if map.style == "fft" else tunable_layout(n, map.capacity)
    W, angles = np.diag(np.exp(1j * omega.numpy())), iter(zip(theta.tolist(), phi.tolist(), strict=True))
    for layer in pairs:
        for i, j in layer:
            F = np.eye(n, dtype=complex)
            F[np.ix_([i, j], [i, j])] = rotation_block(*next(angles))
            W = F @ W
    return W


def random_angles(map: Givens, dtype=torch.float64) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty(k, dtype=dtype).uniform_(-3, 3) for k in (map.rotations, map.rotations, map.size))


def bound(map: Givens, dtype=torch.float64) -> float:
    """Each of ``capacity`` layers of rotations is a sum of two complex products, that is four terms; then D."""
    return rounding(dtype, 4, operations=map.capacity + 1)


@every_size
@every_style
def test_matrix_matches_product_of_its_rotations(size, options):
    map = Givens(size, **options)
    angles = random_angles(map)
    np.testing.assert_allclose(map(*angles).numpy(), dense_in_numpy(map, *angles), rtol=0, atol=bound(map))


@every_size
@every_style
def test_operator_is_the_matrix_on_rows(size, options):
    map = Givens(size, **options)
    angles = random_angles(map)
    h = torch.randn(4, size, dtype=torch.complex128)
    atol = bound(map) * float(h.norm())
    torch.testing.assert_close(map.operator(*angles)(h), h @ map(*angles).mT, rtol=0, atol=atol)
    expected = (dense_in_numpy(map, *angles) @ h.numpy().T).T
    np.testing.assert_allclose(map.operator(*angles)(h).numpy(), expected, rtol=0, atol=atol)


@every_size
@every_style
def test_matrix_is_unitary(size, options):
    map = Givens(size, **options)
    I = torch.eye(size, dtype=torch.complex128)
    W = map(*random_angles(map))
    torch.testing.assert_close(W.mH @ W, I, rtol=0, atol=bound(map) + rounding(torch.float64, 2 * size))
    W = map(*random_angles(map, torch.float32))
    assert W.dtype == torch.complex64
    atol = bound(map, torch.float32) + rounding(torch.float32, 2 * size)  # W, and the product that tests it
    torch.testing.assert_close(W.mH @ W, I.to(W.dtype), rtol=0, atol=atol)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@every_style
def test_gradients_match_finite_differences(size, options):
    map = Givens(size, **options)
    angles = tuple(a.requires_grad_() for a in random_angles(map))
    assert torch.autograd.gradcheck(map, angles)
    h = torch.randn(2, size, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h, *angles: map.operator(*angles)(h), (h, *angles))


def test_two_units_quarter_turn_known_value():
    """Two units: D turns b round, then one rotation by a quarter turn: (a, b) → (a, −b) → (b, a)."""
    W = Givens(2, 1)(torch.tensor([math.pi / 2]), torch.zeros(1), torch.tensor([0.0, math.pi]))
    torch.testing.assert_close(
        W, torch.tensor([[0, 1], [1, 0]], dtype=torch.complex64), rtol=0, atol=rounding(torch.float32, 2, operations=2)
    )


class TestLayouts:
    def test_tunable(self):
        assert tunable_layout(5, 3) == [[(0, 1), (2, 3)], [(1, 2), (3, 4)], [(0, 1), (2, 3)]]
        assert tunable_layout(4, 2) == [[(0, 1), (2, 3)], [(1, 2)]]
        assert tunable_layout(2, 2) == [[(0, 1)], []]
        assert tunable_layout(1, 1) == [[]]

    def test_fourier(self):
        assert fourier_layout(8) == [
            [(0, 1), (2, 3), (4, 5), (6, 7)],
            [(0, 2), (1, 3), (4, 6), (5, 7)],
            [(0, 4), (1, 5), (2, 6), (3, 7)],
        ]
        assert fourier_layout(5) == [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 4)]]
        assert fourier_layout(2) == [[(0, 1)]]
        assert fourier_layout(1) == [[]]

    @given(size=st.integers(1, 40), capacity=st.integers(1, 12))
    def test_each_unit_occurs_at_most_once_per_layer(self, size, capacity):
        for layout in (tunable_layout(size, capacity), fourier_layout(size)):
            for layer in layout:
                units = [unit for pair in layer for unit in pair]
                assert len(set(units)) == len(units)
                assert all(0 <= i < j < size for i, j in layer)

    @given(power=st.integers(0, 6))
    def test_fourier_layout_connects_every_pair_of_units(self, power):
        size = 2**power
        map = Givens(size, style="fft")
        assert map.capacity == max(1, power)
        theta = torch.full((map.rotations,), 0.7, dtype=torch.float64)
        W = map(theta, torch.zeros_like(theta), torch.zeros(size, dtype=torch.float64))
        assert (W.abs() > 1e-9).all()

    def test_two_tunable_layers_mix_at_most_four_units(self):
        map = Givens(10, 2)
        W = map(*random_angles(map))
        assert int((W != 0).sum(1).max()) == 4
        distance = (torch.arange(10)[:, None] - torch.arange(10)).abs()
        assert not W[distance > 2].any()


class TestCounts:
    @given(size=st.integers(1, 20), capacity=st.integers(1, 30))
    def test_tunable(self, size, capacity):
        """Layers have ⌊n/2⌋ and ⌊(n − 1)/2⌋ rotations in turn, two angles each; D has n."""
        matrix = build({"name": "givens", "capacity": capacity}, size, complex=True)
        rotations = (capacity + 1) // 2 * (size // 2) + capacity // 2 * ((size - 1) // 2)
        assert [f.numel() for f in matrix.packed()] == [rotations, rotations, size]
        assert matrix.map.capacity == capacity

    @given(size=st.integers(1, 20))
    def test_full_capacity_has_n_squared_parameters(self, size):
        matrix = build({"name": "givens", "style": "full"}, size, complex=True)
        assert sum(f.numel() for f in matrix.packed()) == size**2
        assert matrix.map.capacity == size

    @pytest.mark.parametrize(("size", "rotations"), [(1, 0), (2, 1), (3, 2), (5, 5), (8, 12), (12, 20), (512, 2304)])
    def test_fourier(self, size, rotations):
        """n/2 log₂ n of them where n is a power of two."""
        matrix = build({"name": "givens", "style": "fft"}, size, complex=True)
        assert [f.numel() for f in matrix.packed()] == [rotations, rotations, size]


def reachable_dimension(map: Givens) -> int:
    """Of the set of matrices that the map reaches, at a random point of it."""
    angles = random_angles(map)

    def parts(*angles):
        W = map(*angles)
        return torch.cat([W.real.flatten(), W.imag.flatten()])

    J = torch.cat(torch.autograd.functional.jacobian(parts, angles), dim=1)
    return int(torch.linalg.matrix_rank(J, rtol=1e-9))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_full_capacity_has_n_squared_dimensions(size):
    """n² numbers for n² dimensions of unitary matrices: none may be wasted."""
    assert reachable_dimension(Givens(size, style="full")) == size**2


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("options", [{"capacity": 2}, {"style": "fft"}], ids=["2 layers", "fft"])
def test_every_angle_adds_a_dimension(size, options):
    """As they would be with phases after the last rotation and a D there too."""
    map = Givens(size, **options)
    assert reachable_dimension(map) == 2 * map.rotations + size


def test_beam_splitter_matrix_is_reached():
    """A beam splitter [[1, i], [i, 1]]/√2 = F(θ, φ) D: it has phases in its rows and in its columns."""
    half, quarter = math.pi / 4, math.pi / 2
    W = Givens(2, 1)(*(torch.tensor(a, dtype=torch.float64) for a in ([half], [-quarter], [quarter, 0])))
    expected = torch.tensor([[1, 1j], [1j, 1]], dtype=torch.complex128) / math.sqrt(2)
    torch.testing.assert_close(W, expected, rtol=0, atol=rounding(torch.float64, 2, operations=2))


def test_full_capacity_is_size():
    assert Givens(7, style="full").capacity == 7
    assert build("givens", 7, complex=True).map.capacity == 2  # as the paper mostly has it


def test_builder_initial_angles_cover_full_circle():
    matrix = build({"name": "givens", "capacity": 8}, 100, complex=True)
    for f in matrix.packed():
        assert f.min() >= -math.pi
        assert f.max() <= math.pi
        assert f.max() - f.min() > 5.9


@every_style
def test_state_dict_round_trip(options):
    torch.manual_seed(1)
    one = build({"name": "givens", **options}, 7, complex=True)
    other = build({"name": "givens", **options}, 7, complex=True)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    assert not torch.allclose(one(), other())
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(one(), other())
    assert list(one.state_dict()) == ["rotation", "phase", "diagonal"]  # where a rotation stands follows from the size


def test_operator_is_used_only_for_large_sizes():
    assert build("givens", 767, complex=True).operator() is None
    assert build("givens", 768, complex=True).operator() is not None
    assert build({"name": "givens", "style": "fft"}, 768, complex=True).operator() is not None
    assert build({"name": "givens", "capacity": 17}, 768, complex=True).operator() is None


def test_invalid_input_raises_value_error():
    with pytest.raises(ValueError, match="Givens expects a size of at least 1; got 0"):
        Givens(0)
    with pytest.raises(ValueError, match="style to be tunable, full or fft; got 'dft'"):
        Givens(4, style="dft")
    with pytest.raises(ValueError, match=r"capacity to be at least 1 and at most 10000, for the tunable style.*got 3"):
        Givens(4, 3, style="fft")
    with pytest.raises(ValueError, match=r"capacity to be at least 1.*got 0"):
        Givens(4, 0)
    with pytest.raises(ValueError, match=r"at most 10000.*got 1000000000000"):
        Givens(4, 10**12)
