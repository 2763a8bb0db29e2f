"""Faults on real kernels and real file systems, after the recipes that each module names; see `needs` for skips."""
