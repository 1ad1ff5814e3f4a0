"""What all tests share: how many threads, which random numbers, how many examples."""

import os
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from tests import data_sets

# pytest-xdist runs a process a core, and processes with many threads each would fight for the cores.
USUAL = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1)
THREADS = int(os.environ.get("OMP_NUM_THREADS", USUAL))
torch.set_num_threads(THREADS)

settings = hypothesis.settings
settings.register_profile(
    "local",
    deadline=None,  # the first call of a torch function can take a second
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("local"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "local"))


class TorchRandom:
    """torch's generator in the form that Hypothesis seeds, so that an example can be replayed."""

    def seed(self, value: int) -> None:
        torch.manual_seed(value)

    def getstate(self) -> Any:
        return torch.get_rng_state()

    def setstate(self, state: Any) -> None:
        torch.set_rng_state(state)


# Data sets: small ones of the tests' own, and a cache of their own. Here, as tests may ask while they are collected.
FOLDER = tempfile.TemporaryDirectory(prefix="steadygrad-tests-", ignore_cleanup_errors=True)
os.environ.setdefault("STEADYGRAD_REAL_DATA", os.environ.get("STEADYGRAD_DATA", ""))  # once: workers inherit it
data_sets.write_all(Path(FOLDER.name), data_sets.real_folder())
os.environ["STEADYGRAD_DATA"] = FOLDER.name
os.environ["XDG_CACHE_HOME"] = str(Path(FOLDER.name, "cache"))
# Inductor's usual cache serves code for one instruction set to processes that are limited to another one.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(FOLDER.name, "inductor"))


TORCH_RANDOM = TorchRandom()  # Hypothesis keeps a weak reference only
hypothesis.register_random(TORCH_RANDOM)


@pytest.fixture(autouse=True)
def same_start():
    """Each test starts from the same seed and thread count, whichever tests ran before it."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes 0.4 ms to seed devices that no test uses
    torch.set_num_threads(THREADS)
