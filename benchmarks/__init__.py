"""Speed and memory against peers, side by side in one run: `python benchmarks/speed.py`."""
