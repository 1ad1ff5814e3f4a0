"""Names, docstrings and options of layers, networks, tasks and papers, read from the source without importing torch."""
