"""Tests of the store inside other frameworks."""
