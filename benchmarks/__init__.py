"""Measures the store against the disk, against bare threads, and against what a user would pick instead.

`python -m benchmarks` runs everything; `README.md` beside this file says how to read what comes out. Each module here
is one benchmark with the same names in each: `TITLE`, `PLOTS`, `targets()` and `measure(run)`. What they share is in
`harness`, what they are compared with in `contenders`.
"""
