"""Benchmarks. Each is ``./task load:<name>``, measures a reference (a floor or a peer) in the same run, and ends in
``report.publish``: a table, and ``loadtest/results/<name>.json``. Absolute figures drift from machine to machine and
from hour to hour; ratios within one run hold.
"""
