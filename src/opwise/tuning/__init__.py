"""`opwise tune`: measures which configuration of a kernel is the fastest on this GPU, workload by workload, and stores it as a table.

opwise.backends.tuned_table and .tuned define tables and look-ups; this package makes them. A configuration is measured as an implementation
of a separate backend (bench.py), so the checker, the clock and the isolated workers are those of a run."""
