"""The files around the code agree with each other."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import steadygrad

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in found}


def declared_requirements() -> list[Requirement]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group if not line.startswith("steadygrad[")]


def test_version_is_consistent_across_files():
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert citation
    assert PROJECT["version"] == citation[1] == metadata.version("steadygrad") == steadygrad.__version__


def test_licence_is_consistent_across_files():
    assert PROJECT["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text("utf-8").startswith("MIT License")
    assert "license: MIT\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_constraints_are_exact_and_public():
    for pin in pins().values():
        assert re.fullmatch(r"==[\w.!]+", str(pin.specifier)), f"{pin}: one exact version, without a local label"
        assert pin.url is None
    assert str(pins()["torch"]) == "torch==2.13.0"


def test_pinned_versions_satisfy_declared_requirements():
    for requirement in declared_requirements():
        pin = pins()[canonicalize_name(requirement.name)]
        (specifier,) = pin.specifier
        assert requirement.specifier.contains(specifier.version), f"{pin} is outside {requirement}"


def test_transitive_dependencies_are_pinned():
    """Transitive dependencies of what is installed here, as far as this platform needs them."""
    seen: set[str] = set()
    queue = declared_requirements()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # the bench extra is not installed for the tests
            continue
        queue += map(Requirement, needs)
    vendor = {name for name in seen if name.startswith(("nvidia-", "cuda-", "triton"))}  # torch pins these itself
    assert seen - vendor <= pins().keys()


def test_py_typed_marker_exists():
    assert (ROOT / "steadygrad" / "py.typed").exists()


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines()) < 50
