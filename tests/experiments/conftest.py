"""What the tests of recipes share."""

import pytest
import torch

from steadygrad.training import loop
from tests import cached


@pytest.fixture(autouse=True)
def one_thread(same_start, monkeypatch):
    """Networks this small gain nothing from a second thread, and lose much to one that waits for a busy core."""
    torch.set_num_threads(1)
    monkeypatch.setattr(loop, "commit", cached.commit)
