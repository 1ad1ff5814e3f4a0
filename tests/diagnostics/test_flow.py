"""The flow through time against autograd, closed forms and torch's own layers."""

import math

import pytest
import torch
from torch import nn

from steadygrad.diagnostics import gradient_norms, half_life, input_map, jacobians, lyapunov_exponents
from steadygrad.diagnostics.flow import attends
from steadygrad.diagnostics.gradients import growth_back
from steadygrad.layers import GRU, LAYERS, RNN
from steadygrad.matrices import Matrix, init, nearest_orthogonal
from tests.rounding import rounding


class UserModule(nn.Module):
    """A user's own: nothing but the call."""

    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(3, 4)

    def forward(self, x, h_0=None):
        return self.inner(x, h_0)


def randomize_initial_state(layer):
    for start in layer.initial_state:
        nn.init.normal_(start)
    return layer


MODULES = {
    **{name: lambda layer=layer: layer(3, 4) for name, layer in LAYERS.items()},
    "trained state": lambda: randomize_initial_state(LAYERS["lstm"](3, 4, 2, trained_state=True)),
    "nn.RNN": lambda: nn.RNN(3, 4),
    "nn.GRU, batch first": lambda: nn.GRU(3, 4, batch_first=True),
    "nn.LSTM, two layers": lambda: nn.LSTM(3, 4, num_layers=2),
    "own": UserModule,
}
WITHOUT_MEMORY = {name: make for name, make in MODULES.items() if not attends(make())}
WITH_MEMORY = {name: make for name, make in MODULES.items() if attends(make())}
every_module = pytest.mark.parametrize("make", WITHOUT_MEMORY.values(), ids=WITHOUT_MEMORY)


@pytest.fixture
def x():
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).double()


@every_module
def test_product_of_jacobians_equals_autograd_gradient(make, x):
    """Of the last state's sum with respect to every input, by autograd through the whole sequence."""
    torch.manual_seed(0)
    module = make().double().eval()
    found = jacobians(module, x)
    g = torch.ones(sum(found.parts), dtype=torch.float64)
    expected = x.clone().requires_grad_()
    batch = expected[None] if getattr(module, "batch_first", False) else expected[:, None]
    _, state = module(batch)
    sum(part.sum() for part in (state if isinstance(state, tuple) else (state,))).backward()
    for t in reversed(range(len(x))):
        torch.testing.assert_close(g @ found.input[t], expected.grad[t])
        g = g @ found.state[t]


def test_jacobians_evaluate_matrix_once_and_leave_module_unchanged(x):
    layer = LAYERS["nnrnn"](3, 4).double()
    next(layer.parameters()).requires_grad = False
    evaluated = []
    (matrix,) = (part for part in layer.modules() if isinstance(part, Matrix))
    matrix.map.register_forward_hook(lambda *_: evaluated.append(1))
    before = {name: parameter.requires_grad for name, parameter in layer.named_parameters()}
    jacobians(layer, x)
    gradient_norms(layer, x)
    assert len(evaluated) == 1
    assert {name: parameter.requires_grad for name, parameter in layer.named_parameters()} == before
    assert layer.training


@every_module
def test_gradient_norms_follow_the_jacobians(make, x):
    torch.manual_seed(0)
    module = make().double()
    width = getattr(module, "output_size", 4)
    direction = torch.randn(width, dtype=torch.float64)
    norms = gradient_norms(module, x, loss=lambda outputs: outputs[-1] @ direction)
    assert norms.shape == (6,)
    found = jacobians(module, x)
    g = torch.zeros(sum(found.parts), dtype=torch.float64)
    last = found.parts[0] - width  # the last layer's h, which is the output
    g[last : last + width] = direction
    for t in reversed(range(6)):
        g = g @ found.state[t]
        torch.testing.assert_close(norms[t], g.norm())
    assert norms[-1] > 0


@every_module
def test_input_map_is_causal_with_input_jacobian_norms_on_diagonal(make, x):
    torch.manual_seed(0)
    module = make().double()
    norms, found = input_map(module, x), jacobians(module, x)
    assert norms.shape == (6, 6)
    assert not norms.triu(1).any()
    torch.testing.assert_close(norms.diagonal(), torch.linalg.matrix_norm(found.input, 2))
    last = torch.linalg.multi_dot([*found.state[1:].flip(0), found.input[0]])
    torch.testing.assert_close(norms[5, 0], torch.linalg.matrix_norm(last, 2))


def test_input_map_of_blocks_bounds_map_of_whole_state(x):
    torch.manual_seed(0)
    layer = LAYERS["enrnn"](3, 6, short_size=2, coupling=False).double()
    long, short = (input_map(layer, x, block) for block in (slice(0, 4), slice(4, 6)))
    whole = input_map(layer, x)
    assert (long <= whole * (1 + 1e-12)).all()
    assert (whole <= (long.square() + short.square()).sqrt() * (1 + 1e-12)).all()


def linear_rnn(W, inputs=2):
    layer = RNN(inputs, len(W), activation="identity", bias=False).double()
    layer.weight_hh_l0.data = W.double()
    return layer


def test_half_life_of_a_linear_network():
    torch.manual_seed(0)
    Q = nearest_orthogonal(init.haar(16).double())
    shrinking = linear_rnn(0.9 * Q)
    exponents = lyapunov_exponents(shrinking, torch.randn(60, 2).double())
    torch.testing.assert_close(exponents, torch.full((16,), math.log(0.9), dtype=torch.float64))
    assert half_life(float(exponents[0])) == pytest.approx(math.log(0.5) / math.log(0.9))
    kept = lyapunov_exponents(linear_rnn(Q), torch.randn(60, 2).double())
    assert kept.abs().max() < rounding(torch.float64, 16, operations=2)  # a product and a QR in each step


def test_lyapunov_exponents_of_non_normal_matrix_are_log_eigenvalues():
    """Its eigenvalues, not its singular values, decide in the long run."""
    W = torch.tensor([[0.9, 1.0], [0.0, 0.5]])
    exponents = lyapunov_exponents(linear_rnn(W), torch.zeros(400, 2).double())
    torch.testing.assert_close(exponents.exp(), torch.tensor([0.9, 0.5]).double(), rtol=1e-3, atol=0)


def test_jacobians_disable_dropout_and_restore_training_mode(x):
    module = nn.LSTM(3, 4, num_layers=2, dropout=0.5).double().train()
    first, second = jacobians(module, x), jacobians(module, x)
    assert torch.equal(first.state, second.state)
    assert module.training


def test_invalid_input_raises_value_error(x):
    with pytest.raises(ValueError, match="one direction"):
        jacobians(nn.GRU(3, 4, bidirectional=True), x)
    with pytest.raises(ValueError, match="one sequence"):
        jacobians(nn.GRU(3, 4), x[None])
    with pytest.raises(ValueError, match="skip fewer than the 6 steps"):
        lyapunov_exponents(nn.GRU(3, 4).double(), x, skip=6)


class AttentionWrapper(nn.Module):
    """A layer that attends, inside a user's own."""

    def __init__(self):
        super().__init__()
        self.inner = LAYERS["relrnn"](3, 4)

    def forward(self, x, h_0=None):
        return self.inner(x, h_0)


@pytest.mark.parametrize("make", [*WITH_MEMORY.values(), AttentionWrapper], ids=[*WITH_MEMORY, "around"])
@pytest.mark.parametrize("look", [jacobians, input_map, lyapunov_exponents])
def test_jacobian_functions_reject_attention_layers(make, look, x):
    module = make().double()
    words = f"that of {type(module).__name__} has the past states in it .* use gradient_norms and attention_map"
    with pytest.raises(ValueError, match=words):
        look(module, x)


def test_gradient_norms_reject_module_wrapping_attention_layer(x):
    with pytest.raises(ValueError, match="of such layers by themselves"):
        gradient_norms(AttentionWrapper().double(), x)


def test_attends_is_true_for_exactly_five_layers():
    """So that the tests above are not for nothing."""
    assert WITH_MEMORY.keys() == {"memrnn", "memlstm", "sab", "relrnn", "rellstm"}
    assert attends(GRU(3, 4, attention={}))
    assert not attends(GRU(3, 4))


def test_growth_back_ignores_zero_and_non_finite_norms():
    exact = 3 * 0.9 ** torch.arange(50, 0, -1, dtype=torch.float64)
    assert growth_back(exact) == pytest.approx(math.log(0.9))
    assert growth_back(exact.flip(0)) == pytest.approx(-math.log(0.9))
    exact[:10], exact[10], exact[11] = 0.0, math.inf, math.nan
    assert growth_back(exact) == pytest.approx(math.log(0.9))
    assert growth_back(torch.tensor([0.0, 1.0])) == growth_back(torch.zeros(3)) == 0


def test_half_life_is_infinite_for_nonnegative_exponent():
    assert half_life(0.0) == half_life(0.1) == math.inf
