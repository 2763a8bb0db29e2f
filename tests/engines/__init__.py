"""Tests of what turns engines' answers into entries."""
