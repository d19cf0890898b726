"""Random workloads: the backends against the reference and each other, and failures minimised.

A `Case` (case.py) is one try, written so that it can be repeated. A worker carries it out (trial.py); hypothesis, imported only in
search.py, chooses the next case and minimises failures."""
