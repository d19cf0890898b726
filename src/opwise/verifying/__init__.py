"""Random workloads: the backends against the truth and each other, and of what fails the smallest case that still does.

A `Case` (case.py) is one try, written so that it can be tried again. It is carried out in a worker (trial.py); what is tried next, and how
a failure becomes small, is hypothesis's (search.py), which is imported there alone.
"""
