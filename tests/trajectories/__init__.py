"""Tests of `tokenstore.trajectories`."""
