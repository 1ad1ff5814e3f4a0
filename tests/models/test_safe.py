"""Pickled layers and models load with ``weights_only=True``, and nothing but the classes of this package is built."""

import io
import pickle

import pytest
import torch
from torch import nn
from torch.serialization import safe_globals

import steadygrad
from steadygrad.layers import GRU, LAYERS, NCGRU, NNRNN, RNN, Stack
from steadygrad.matrices import COMPLEX, MATRICES
from steadygrad.models import MODELS, LanguageModel, PolicyModel, SequenceModel
from steadygrad.tasks import TASKS

OPTIONS = {
    "plain": {},
    "deep": {"num_layers": 2, "bidirectional": True, "trained_state": True, "dtype": torch.float64},
}


def reloaded(module):
    """The module after `torch.save` and a safe `torch.load`."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    with safe_globals(steadygrad.safe_classes()):
        return torch.load(file, weights_only=True)


def assert_same_module(module, x):
    """Same outputs and gradients, and the guards and constraints are in place."""
    torch.manual_seed(0)
    expected = module(x)
    twin = reloaded(module)
    assert type(twin) is type(module)
    assert repr(twin) == repr(module)
    torch.manual_seed(0)
    found = twin(x)
    first = [value[0] if isinstance(value, tuple) else value for value in (found, expected)]
    assert torch.equal(*first)
    first[0].square().sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in twin.parameters())
    assert list(twin.state_dict()) == list(module.state_dict())
    return twin


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_layer_loads_safely(name, options):
    torch.manual_seed(1)
    layer = LAYERS[name](3, 8, **options)
    x = torch.randn(5, 2, 3, dtype=options.get("dtype"))
    with torch.no_grad():
        layer.eval()(x)  # fills caches, which are not saved
    twin = assert_same_module(layer.train(), x)
    twin.reset_parameters()  # its constructor's arguments were saved


@pytest.mark.parametrize("name", [*MATRICES, *COMPLEX])
def test_every_matrix_loads_safely(name):
    assert_same_module(RNN(3, 8, recurrent=name), torch.randn(5, 2, 3))


def test_attention_and_stacks_load_safely():
    attentions = [{"score": "learned"}, {"short": None, "combine": "concatenate"}, {"alignment": "dot"}]
    for attention in attentions:
        assert_same_module(GRU(3, 8, attention=attention), torch.randn(5, 2, 3))
    assert_same_module(Stack([NNRNN(3, 8), NCGRU(8, 4)]), torch.randn(5, 2, 3))


def test_guards_of_constrained_matrices_are_restored():
    twin = reloaded(NNRNN(3, 8))
    with pytest.raises(ValueError, match="NNRNN expects weight_hh_l0 to stay as it is"):
        nn.utils.parametrizations.weight_norm(twin, "weight_hh_l0")
    with pytest.raises(ValueError, match="NNRNN expects weight_hh_l0 to stay as it is"):
        del twin.weight_hh_l0


@pytest.mark.parametrize("name", MODELS)
def test_every_relational_network_loads_safely(name):
    problem = TASKS["rmts"]().problem
    model = MODELS[name](problem)
    images = torch.rand(2, problem.objects, problem.channels, problem.image_size, problem.image_size)
    assert_same_module(model.eval(), images)


def test_other_models_load_safely():
    assert_same_module(SequenceModel(NNRNN(3, 8), 4), torch.randn(2, 5, 3))
    language = LanguageModel(lambda size, units: GRU(size, units or 8), 11, embedding_size=8, tied=True)
    assert_same_module(language, torch.randint(11, (2, 5)))
    policy = PolicyModel(lambda size: GRU(size, 8), 7, (5, 3), 4, 6)
    squares = torch.stack([torch.randint(5, (2, 3, 49)), torch.randint(3, (2, 3, 49))], dim=-1)
    x = torch.cat([squares.flatten(2), torch.zeros(2, 3, 4)], dim=-1)
    assert_same_module(policy, x)


class Touch:
    """What an attacker would pickle: a call of a function."""

    def __reduce__(self):
        return print, ("run",)


def test_other_code_is_refused(capsys):
    layer = GRU(3, 4)
    layer.extra = Touch()
    with pytest.raises(pickle.UnpicklingError, match="print"):
        reloaded(layer)
    assert capsys.readouterr().out == ""


def test_only_classes_are_declared_safe():
    safe = steadygrad.safe_classes()
    assert all(isinstance(cls, type) for cls in safe)
    assert len(set(safe)) == len(safe)
    assert all(cls.__module__.split(".")[0] in ("steadygrad", "torch") for cls in safe)
    file = io.BytesIO()
    torch.save(GRU(3, 4), file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="GRU"):  # not declared outside the context manager
        torch.load(file, weights_only=True)
