"""Which kernel runs, that it can be forced, and that its absence is said once."""

import pytest
import torch

from steadygrad.kernels import ElmanInputs, Steps, backend, describe, elman_unroll, native
from tests.backends import needs_c

X = torch.zeros(2, 3)
STEPS = Steps.padded(2, 1)


@needs_c
def test_auto_backend_prefers_c_kernel(monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    assert backend.choose(X) == "c"
    assert backend.choose(X.half()) == "python"
    assert backend.choose(X.to("meta")) == "reference"
    assert "C kernels" in describe()


def test_large_matrix_with_few_rows_uses_python_backend(monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    usual, large = backend.choose(X), torch.zeros(250, 250)
    assert backend.choose_for(X, X) == usual
    assert backend.choose_for(X, large) == "python"
    assert backend.choose_for(torch.zeros(5, 3), large) == usual
    assert backend.choose_for(X, large, resets=True) == usual  # Python has no resets
    if usual == "c":
        monkeypatch.setenv(backend.VARIABLE, "c")
        assert backend.choose_for(X, large) == "c"


@pytest.mark.parametrize("name", ["python", "reference"])
def test_environment_variable_selects_backend(name, monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, name)
    assert backend.choose(X) == name
    assert name in describe()


def test_forced_c_backend_raises_on_float16(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "c")
    with pytest.raises(ValueError, match=r"cannot run: .*float32 and float64; got torch.float16"):
        backend.choose(X.half())


def test_unknown_backend_name_raises_value_error(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "cuda")
    with pytest.raises(ValueError, match="expects one of auto, c, python, reference; got 'cuda'"):
        backend.choose(X)


@pytest.mark.filterwarnings("error")
def test_missing_library_falls_back_with_one_warning(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "auto")
    monkeypatch.setattr(native, "library", lambda: "it was not built")
    backend.say_once.cache_clear()
    tensors = (torch.ones(2, 3), torch.ones(4, 3), torch.eye(4), None, torch.zeros(1, 4))
    arguments = ElmanInputs(*tensors, "tanh", Steps.padded(2, 1))
    with pytest.warns(RuntimeWarning, match="without its C kernel, several times slower: it was not built") as caught:
        elman_unroll(arguments)
    elman_unroll(arguments)  # a second warning would be an error here
    assert len(caught) == 1
    assert "python kernels (no C kernel: it was not built)" in describe()
    monkeypatch.setenv(backend.VARIABLE, "c")
    assert describe().startswith("none: STEADYGRAD_KERNELS=c, and there is no C kernel: it was not built")
    monkeypatch.setenv(backend.VARIABLE, "refrence")
    assert describe() == "none: STEADYGRAD_KERNELS expects one of auto, c, python, reference; got 'refrence'"


@needs_c
@pytest.mark.parametrize("limit", native.LIMITS)
def test_the_instruction_set_can_be_limited(limit, monkeypatch):
    """By the variable, when the library is loaded; a limit above what the machine has changes nothing."""
    try:
        monkeypatch.delenv(native.LIMIT_VARIABLE, raising=False)
        native.library.cache_clear()
        best = native.library().steadygrad_set_isa(-1)
        monkeypatch.setenv(native.LIMIT_VARIABLE, limit)
        native.library.cache_clear()
        expected = min(best, native.LIMITS.index(limit))
        assert native.instruction_set() == native.INSTRUCTION_SETS[expected]
        assert native.library().steadygrad_set_isa(2) == expected
    finally:
        monkeypatch.undo()
        native.library.cache_clear()
        native.library().steadygrad_set_isa(-1)


def test_unknown_instruction_set_limit_raises_value_error(monkeypatch):
    monkeypatch.setenv(native.LIMIT_VARIABLE, "avx")
    native.library.cache_clear()
    with pytest.raises(ValueError, match="STEADYGRAD_CPU_CAPABILITY expects one of baseline, avx2, avx512; got 'avx'"):
        native.library()
