"""What the benchmarks share: values, statistics, work to do, baselines, rounds, and the report.

`suite` has the values, `statistics` the arithmetic, `shapes` makes entries, `baselines` are the two limits, `load` puts
load on a sink, `rounds` repeats and pairs, `machine` says where, `table`, `plots` and `report` show it.
"""
