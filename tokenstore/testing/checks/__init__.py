"""The checks of the conformance suite, one small function for each behaviour, grouped by what a caller does."""
