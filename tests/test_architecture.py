"""Imports flow one way. The table is the architecture; change it on purpose or not at all."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import steadygrad
from steadygrad import layers

ROOT = Path(steadygrad.__file__).parent

MAY_IMPORT = {
    "check": set(),
    "files": set(),
    "records": {"check", "files"},
    "scores": {"files", "records"},
    "manifest": {"files"},
    "problem": set(),
    "duration": set(),
    "catalog": {"check", "files"},  # reads the source of layers, models, tasks and training, and imports none of them
    "kernels": set(),
    "matrices": {"check", "kernels"},
    "layers": {"check", "matrices", "kernels"},
    "models": {"check", "layers", "kernels", "problem"},
    "integrations": {"layers"},  # other libraries, each imported by one module
    "tasks": {"check", "files", "problem"},
    "training": {
        "catalog",
        "check",
        "files",
        "records",
        "manifest",
        "duration",
        "models",
        "layers",
        "matrices",
        "tasks",
    },
    "diagnostics": {"models", "layers", "matrices", "kernels"},
    "export": {"check", "files", "models", "layers", "kernels"},
    "experiments": {
        "catalog",
        "check",
        "files",
        "records",
        "scores",
        "manifest",
        "models",
        "layers",
        "tasks",
        "training",
        "diagnostics",
    },
    "report": {"check", "files", "records", "scores", "manifest", "duration"},  # reads result files only
}
"""folders and modules of the package, and those that each may import"""
MAY_IMPORT["cli"] = set(MAY_IMPORT)  # on top of all

WITHOUT_TORCH = {"check", "files", "records", "scores", "manifest", "problem", "duration", "catalog", "report"}


def imported(source: str, package: str) -> Iterator[str]:
    """Full names of what ``source``, a module of ``package``, imports: `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                here = package.split(".")[: -(level - 1) or None] if level else []
                base = ".".join([*here, *([module] if module else [])])
                yield base
                yield from (f"{base}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module")):
                match node.args:
                    case [ast.Constant(value=str(name)), *_]:
                        yield name


def forbidden_imports(source: str, path: str) -> list[str]:
    """What the module at ``path`` (relative to the package) imports against the table."""
    *folders, _ = Path(path).parts
    part = folders[0] if folders else Path(path).stem
    if part in ("__init__", "__main__"):
        return []  # the package's own have a test of their own
    if part not in MAY_IMPORT:
        return [f"{path}: {part} is not in the table"]
    wrong = set()
    for name in imported(source, ".".join(["steadygrad", *folders])):
        match name.split("."):
            case ["steadygrad", target, *_] if target in MAY_IMPORT and target not in MAY_IMPORT[part] | {part}:
                wrong.add(f"{path}: {part} must not import {target}")
            case ["torch", *_] if part in WITHOUT_TORCH:
                wrong.add(f"{path}: {part} must not import torch")
    return sorted(wrong)


def test_imports_flow_one_way():
    files = sorted(ROOT.glob("**/*.py"))
    assert files
    found = [
        fault
        for file in files
        for fault in forbidden_imports(file.read_text("utf-8"), file.relative_to(ROOT).as_posix())
    ]
    assert not found, "\n".join(found)


def test_allowed_imports_have_no_cycle():
    done: set[str] = set()
    while ready := {part for part, needs in MAY_IMPORT.items() if part not in done and needs <= done}:
        done |= ready
    assert done == set(MAY_IMPORT)


def test_import_steadygrad_loads_no_torch_or_subpackages():
    """So that `steadygrad.report` stays free of torch."""
    code = "import sys, steadygrad; print(*(m for m in sys.modules if m == 'torch' or m.startswith('steadygrad.')))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


def test_subpackages_are_attributes_of_package():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = steadygrad.nonsense
    for part in MAY_IMPORT:
        assert hasattr(steadygrad, part)


def test_every_layer_is_an_attribute_of_the_package():
    """A new layer needs no entry: its name is read from its class."""
    classes = {make.__name__: make for make in layers.LAYERS.values()}
    assert steadygrad.__all__ == sorted({*classes, *steadygrad.FROM})
    assert all(getattr(steadygrad, name) is make for name, make in classes.items())
    for name, module in steadygrad.FROM.items():
        assert getattr(steadygrad, name) is getattr(sys.modules[f"steadygrad.{module}"], name)
    assert {*steadygrad.__all__, *MAY_IMPORT, "__version__"} <= set(dir(steadygrad))


def test_type_checkers_know_the_names_of_the_package():
    """They follow the imports under TYPE_CHECKING: all names of steadygrad.layers, and the functions in FROM."""
    source = ast.parse((ROOT / "__init__.py").read_text("utf-8"))
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    imports = {alias.name: node.module for node in block.body for alias in node.names}  # type: ignore[attr-defined]
    assert imports.pop("*") == "steadygrad.layers"
    of_others = {name: module for name, module in steadygrad.FROM.items() if module != "layers"}
    assert imports == {name: f"steadygrad.{module}" for name, module in of_others.items()}


def test_dir_of_package_does_not_import_torch():
    code = "import sys, steadygrad; assert 'NCGRU' in dir(steadygrad); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
