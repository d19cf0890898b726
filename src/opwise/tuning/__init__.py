"""`opwise tune`: measures which configuration of a kernel is the quickest on this GPU, workload by workload, and stores it as a table.

What a table is, and how plans look one up, is in opwise.backends.tuned_table and .tuned; here is how one is made. A configuration is
measured as an implementation of a backend of its own (bench.py), so the checker, the clock and the isolated workers are those of a run.
"""
