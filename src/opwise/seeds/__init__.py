"""The lecture notes and articles that opwise comes from, run again: each experiment beside the figure that was published.

table.py lists the experiments, one module a source or subject computes them, running.py hands them to workers, store.py keeps what came
out. Their numbers are taken by the instruments of opwise.measure; where a source measured otherwise, its way is taken as well and said.
"""
