"""Tests of `tokenstore.export`."""
