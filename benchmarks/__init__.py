"""Benchmarks of speed and memory against peers, interleaved in one run: `python benchmarks/speed.py`."""
