"""The files around the code agree with each other."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

import steadygrad
from tests.lowest import lowest

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
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


def test_lowest_torch_is_the_one_that_ci_tests():
    torch = Requirement(PROJECT["dependencies"][0])
    (bound,) = (s.version for s in torch.specifier if s.operator == ">=")
    assert lowest(PROJECT["dependencies"][0]) == f"torch=={bound}"
    assert f"'=={bound}.0'" in (WORKFLOWS / "test.yml").read_text("utf-8")


def test_classifiers_name_versions_that_are_allowed_and_tested():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named
    assert all(Requirement(f"python{PROJECT['requires-python']}").specifier.contains(version) for version in named)
    for workflow in ("test.yml", "wheels.yml"):
        assert {f'"{version}"' for version in named} <= set(re.findall(r'"3\.\d+"', (WORKFLOWS / workflow).read_text()))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what an sdist is built from, so that nothing is written into the repository."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("steadygrad", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def build(source, code, **variables):
    """Run a call of the build backend in the folder ``source`` and return the finished process."""
    program = f"import setuptools.build_meta as backend\n{code}"
    environment = os.environ | variables
    return subprocess.run([sys.executable, "-c", program], cwd=source, env=environment, capture_output=True, text=True)


def test_sdist_has_what_building_needs_and_no_tests(source, tmp_path):
    """Tests read docs, results and git, so in an sdist they would fail."""
    ended = build(source, f"backend.build_sdist({str(tmp_path)!r})")
    assert ended.returncode == 0, ended.stderr
    (file,) = tmp_path.iterdir()
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {f"steadygrad/kernels/c/{path.name}" for path in (ROOT / "steadygrad/kernels/c").iterdir()}
    expected |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "steadygrad").glob("**/*.py")}
    assert expected | {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= names
    assert [name for name in names if name.startswith(("tests", "benchmarks")) or "_native" in name] == []


def test_wheel_serves_every_python(source, tmp_path):
    """Without a compiler, which is faster, and the wheel is then also complete."""
    ended = build(source, f"backend.build_wheel({str(tmp_path)!r})", CC="no-compiler")
    assert ended.returncode == 0, ended.stderr
    (file,) = tmp_path.iterdir()
    _, _, _, tags = parse_wheel_filename(file.name)
    assert {(tag.interpreter, tag.abi) for tag in tags} == {("py3", "none")}
    assert "steadygrad: the C kernel was not built" in ended.stdout
    with zipfile.ZipFile(file) as archive:
        assert "steadygrad/kernels/native.py" in archive.namelist()


def test_wheel_of_a_platform_is_not_built_without_its_kernel(source, tmp_path):
    (source / "ziglang.py").write_text("raise SystemExit('no clang')")
    ended = build(
        source, f"backend.build_wheel({str(tmp_path)!r})", STEADYGRAD_WHEEL="win_amd64", PYTHONPATH=str(source)
    )
    assert ended.returncode != 0
    assert "no clang" in ended.stderr
    assert list(tmp_path.glob("*.whl")) == []


def test_make_builds_a_wheel_for_every_target():
    listed = re.search(r"^WHEELS \?= (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert listed
    targets = re.findall(r'^    "(\w+)": "[\w.-]+",$', (ROOT / "setup.py").read_text("utf-8"), re.MULTILINE)
    assert listed[1].split() == targets
    for tag in targets:
        if glibc := re.match(r"manylinux_2_(\d+)_", tag):
            assert int(glibc[1]) <= 28  # as torch's own wheels
