"""Fixtures that all tests of the benchmarks share."""

import gc

import pytest


@pytest.fixture(autouse=True)
def small_heap():
    """Hide the objects of the test session from the collector.

    The benchmarks collect garbage before each round. The session holds millions of objects, so one collection would
    take a quarter of a second.
    """
    gc.freeze()
    yield
    gc.unfreeze()
