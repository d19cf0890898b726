"""Mutation tests: one fault at a time is planted in a copy of the kernels' sources, and the suite must notice.

`faults.py` says what a fault is and plants it, `catalogue` lists them as data, one file a backend, `trial.py` runs in a process of its own
what the suite runs on one implementation, `campaign.py` runs many trials side by side. `scripts/mutate.py` is the command.
"""
