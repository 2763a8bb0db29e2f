"""Tests of tokenstore.testing."""
