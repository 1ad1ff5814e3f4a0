"""Classes read from source code."""

import sys

import pytest

from steadygrad.catalog import source
from steadygrad.catalog.source import Option

CODE = '''
from steadygrad.check import LARGEST
from elsewhere import Other

START: str = "torch"

class Base(Other):
    """Base class."""

    size: int = 3
    def __init__(self, problem, asymmetric=False, /, *, rate: float = 1e-3, start=START):
        pass

class Own(Base, name="own"):
    """First ``line``.

    More.
    """

    kind: ClassVar[str] = "x"
    width: float | None = None
    """how wide
    it is"""
    needed: int

    def __init__(self, problem, *, units, rate=0.5, **shared: Any):
        pass

class Heir(Own):
    pass
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "part.py").write_text(CODE, "utf-8")
    monkeypatch.setattr(source, "ROOT", tmp_path)
    source.module.cache_clear()
    yield source.Module("part")
    source.module.cache_clear()


def test_class_has_registered_name_docstring_and_lineage(module):
    own = module.classes["Own"]
    assert (own.entered, own.first_line, own.doc) == ("own", "First line.", "First ``line``.\n\nMore.")
    assert module.classes["Base"].entered is None
    assert [cls.name for cls in module.classes["Heir"].lineage] == ["Heir", "Own", "Base"]
    assert module.find("Other") is None


def test_fields_have_defaults_and_descriptions_and_begin_with_those_of_base_class(module):
    assert module.classes["Heir"].fields() == {
        "size": Option("3"),
        "width": Option("None", "how wide it is"),
        "needed": Option(None),
    }


def test_options_behind_stars_are_keyword_options_of_base_class(module):
    options = {"units": Option(None), "rate": Option("0.5"), "start": Option("torch")}
    assert module.classes["Heir"].options(keyword_only=True) == options
    assert list(module.classes["Own"].options()) == ["problem", "units", "rate", "start"]
    assert module.classes["Base"].options()["asymmetric"] == Option("False")


def test_imported_constant_is_a_value(monkeypatch):
    source.module.cache_clear()
    here = source.module("training.options")
    assert here.value(source.ast.Name("OPTIMIZERS"))[0] == "adam"
    assert source.module("cli.common").value(source.ast.Name("DEEPEST")) == 20
    assert "steadygrad.cli.common" not in sys.modules or sys.modules["steadygrad.cli.common"].DEEPEST == 20
