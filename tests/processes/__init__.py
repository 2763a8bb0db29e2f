"""Whole processes: how they end, fork, are interrupted, and share a directory."""
