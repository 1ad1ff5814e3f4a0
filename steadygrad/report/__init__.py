"""Tables, figures and pages from result files. Nothing here imports torch, so results can be read without it."""
