"""Tests of the benchmarks' arithmetic and of what they are compared with; none looks at how long anything takes."""
