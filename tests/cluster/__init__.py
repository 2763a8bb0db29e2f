"""Tests of the cluster store: its parts, its shards without Ray, and all of it on real Ray clusters."""
