"""What is read from the source equals what the registries hold once torch is imported."""

import inspect
from dataclasses import fields

import pytest

from steadygrad.catalog import networks
from steadygrad.layers import LAYERS
from steadygrad.models import MODELS
from steadygrad.tasks import TASKS
from steadygrad.training import Settings, Train
from steadygrad.training.kinds import kind_of, networks_for
from steadygrad.training.typed import keyword_options, layer_options


def defaults(options):
    """Default of each option of the catalogue, by name."""
    return {name: option.default for name, option in options.items()}


def registered(parameters):
    """Default, as text, of each of `inspect.Parameter`s, by name. Layers list arguments by position first."""
    return {name: None if p.default is p.empty else str(p.default) for name, p in parameters.items()}


def first_line(thing):
    return inspect.cleandoc(thing.__doc__).splitlines()[0].replace("``", "")


@pytest.mark.parametrize(
    ("found", "registry"), [(networks.layers, LAYERS), (networks.networks, MODELS), (networks.tasks, TASKS)]
)
def test_names_classes_and_docstrings_equal_those_of_registry(found, registry):
    assert list(found()) == list(registry)
    for name, cls in found().items():
        assert cls.name == registry[name].__name__
        assert cls.doc == inspect.cleandoc(registry[name].__doc__)
        assert cls.first_line == first_line(registry[name])


@pytest.mark.parametrize("name", LAYERS)
def test_layer_options_equal_those_of_constructor(name):
    assert defaults(networks.layer_options(name)) == registered(layer_options(LAYERS[name]))


@pytest.mark.parametrize("name", MODELS)
def test_network_options_equal_those_of_constructor(name):
    assert defaults(networks.network_options(name)) == registered(keyword_options(MODELS[name]))


@pytest.mark.parametrize("name", TASKS)
def test_task_options_model_and_networks_equal_those_of_library(name):
    assert defaults(networks.task_options(name)) == {f.name: str(f.default) for f in fields(TASKS[name])}
    model, _ = networks.kind_of(name)
    assert model.name == kind_of(name).model.__name__
    assert defaults(networks.model_options(name)) == registered(keyword_options(kind_of(name).model))
    assert list(networks.networks_for(name)) == list(networks_for(name))


@pytest.mark.parametrize("task", TASKS)
def test_options_on_a_task_equal_those_of_settings(task):
    for layer in networks_for(task):
        known = Settings({"name": layer}, {"name": task}, Train()).known_options()
        assert defaults(networks.options_on(layer, task)) == registered(known), layer


def test_train_options_equal_fields_and_are_all_described():
    options = networks.train_options()
    assert defaults(options) == {f.name: str(f.default) for f in fields(Train)}
    assert all(option.description for option in options.values())
    assert options["clip"].description == "largest norm of the gradient; a larger gradient is scaled down to it"


def test_common_options_of_layers_are_described():
    options = networks.layer_options("lstm")
    common = ("hidden_size", "num_layers", "dropout", "bidirectional", "attention", "trained_state")
    assert all(options[name].description for name in common)
    assert options["recurrent"].description == ""  # the docstring of the class describes it
