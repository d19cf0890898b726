"""The experiments of the lecture notes and articles behind opwise, repeated: each beside its published figure.

table.py lists the experiments, one module per source or subject computes them, running.py hands them to workers, store.py stores the
results. Figures are taken by opwise.measure; if a source measured otherwise, its method is used as well and named."""
