"""What the tests of matrices share."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

ORACLES = Path(__file__).parents[1] / "oracles"


@pytest.fixture
def oracle() -> Callable[[str], dict[str, Tensor]]:
    """The arrays of an oracle file as tensors."""

    def load(name: str) -> dict[str, Tensor]:
        with np.load(ORACLES / f"{name}.npz", allow_pickle=False) as file:
            return {key: torch.from_numpy(file[key]) for key in file.files if file[key].dtype.kind in "fi"}

    return load


@pytest.fixture(autouse=True)
def one_thread(same_start):
    """Matrices this small gain nothing from a second thread, and lose much to one that waits for a busy core."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))


@pytest.fixture
def double():
    """Double precision for everything that the test creates."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
