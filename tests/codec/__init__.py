"""Tests of the format of a line."""
