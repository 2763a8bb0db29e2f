"""Tests of one rollout's files."""
