"""Layers on top of each other: against the same one after another."""

import pytest
import torch

from steadygrad.diagnostics.portrait import recurrent_matrices
from steadygrad.layers import GRU, LSTM, NCGRU, NNRNN, SAB, MemLSTM, MemRNN, RelRNN, Stack

pytestmark = pytest.mark.filterwarnings("ignore:.* was overwritten after it was built")  # on purpose

X = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0))


def test_stack_matches_sequential_application_of_layers():
    layers = [NCGRU(3, 5), LSTM(5, 4, num_layers=2), NNRNN(4, 6)]
    stack = Stack(layers)
    output, state = stack(X)
    expected, ends = X, []
    for layer in layers:
        expected, end = layer(expected)
        ends += end if isinstance(end, tuple) else [end]
    assert torch.equal(output, expected)
    assert all(map(torch.equal, state, ends))
    assert stack.blocks == {"layer 0": slice(0, 5), "layer 1": slice(5, 21), "layer 2": slice(21, 27)}
    assert sum(part.shape[0] * part.shape[2] for part in state) == 27


def test_split_sequence_matches_whole_sequence():
    stack = Stack([LSTM(3, 5), GRU(5, 4)])
    whole, end = stack(X)
    first, state = stack(X[:2])
    second, last = stack(X[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    for a, b in zip(last, end, strict=True):
        torch.testing.assert_close(a, b)


def test_stack_layers_may_have_trained_initial_state():
    stack = Stack([LSTM(3, 5, trained_state=True), GRU(5, 4), GRU(4, 2, trained_state=True)])
    starts = [*stack[0].initial_state, *stack[2].initial_state]
    for start in starts:
        torch.nn.init.normal_(start)
    output, _ = stack(X)
    h_0, c_0, last = (start[:, None].expand(-1, 2, -1) for start in starts)
    passed, _ = stack(X, (h_0, c_0, torch.zeros(1, 2, 4), last))
    torch.testing.assert_close(output, passed)
    output.sum().backward()
    assert all(start.grad.any() for start in starts)


def test_stack_of_one_layer_returns_its_plain_state():
    _, state = Stack([GRU(3, 4)])(X)
    assert state.shape == (1, 2, 4)


def test_between_function_is_applied_between_layers():
    layers = [GRU(3, 4), GRU(4, 5), GRU(5, 2)]
    output, _ = Stack(layers)(X, between=lambda x: 2 * x)
    expected = layers[2](2 * layers[1](2 * layers[0](X)[0])[0])[0]
    assert torch.equal(output, expected)


def test_without_memory_clears_only_memory():
    stack = Stack([RelRNN(3, 4), GRU(4, 5)])
    _, state = stack(X)
    h, s, *memory, above = stack.without_memory(state)
    assert torch.equal(h, state[0])
    assert torch.equal(s, state[1])
    assert torch.equal(above, state[-1])
    assert not any(part.any() for part in memory)
    torch.testing.assert_close(stack(X, stack.without_memory(state)), stack(X, (h, s, *memory, above)))


@pytest.mark.parametrize("below", [MemRNN, RelRNN, SAB], ids=lambda layer: layer.__name__)
def test_split_sequence_matches_whole_sequence_with_memory(below):
    first = below(3, 4)
    stack = Stack([first, MemLSTM(first.output_size, 5)])
    whole, end = stack(X)
    first, state = stack(X[:4])
    second, last = stack(X[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    for a, b in zip(last, end, strict=True):
        torch.testing.assert_close(a, b)


def test_state_may_be_list_and_incomplete_state_raises_value_error():
    stack = Stack([LSTM(3, 5), GRU(5, 4)])
    _, state = stack(X)
    assert torch.equal(stack(X, list(state))[0], stack(X, state)[0])
    for wrong in (state[:2], (*state, state[0]), [], state[0]):
        got = 1 if isinstance(wrong, torch.Tensor) else len(wrong)
        words = f"^Stack expects a state of 3 tensors, those of all layers in a row; got {got}$"
        with pytest.raises(ValueError, match=words):
            stack(X, wrong)


def test_stack_sizes_penalty_and_matrices_combine_its_layers():
    layers = [NNRNN(3, 6, spectrum_pull=1.0), GRU(6, 5), NNRNN(5, 4, spectrum_pull=2.0)]
    stack = Stack(layers)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.1)
    assert (stack.input_size, stack.output_size) == (3, 4)
    assert stack.penalty().item() == pytest.approx((layers[0].penalty() + layers[2].penalty()).item())
    assert stack.penalty().item() > 0
    found = stack.matrices()
    assert {name: tuple(W.shape) for name, W in found.items() if name[0] != "1"} == {
        "0.recurrent_l0": (6, 6),
        "2.recurrent_l0": (4, 4),
    }
    assert found.keys() == recurrent_matrices(stack).keys()  # one name for a matrix, whoever is asked


def test_invalid_layers_raise_value_error():
    with pytest.raises(ValueError, match="Stack expects at least one layer; got none"):
        Stack([])
    for option in ("batch_first", "bidirectional"):
        with pytest.raises(ValueError, match=rf"unidirectional .* time first; got .*{option}=True .*in layer 0"):
            Stack([GRU(3, 4, **{option: True})])
    with pytest.raises(ValueError, match="takes the 4 features of the one before it; got one of 5"):
        Stack([GRU(3, 4), GRU(5, 4)])
