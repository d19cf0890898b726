"""`opwise block`: a transformer block, run for seconds with each backend's kernels in it.

sizes, wiring       the block: sizes, and which op follows which on which buffers
checking            correctness, op by op, on the buffers that were used
turns               measuring: candidates in turns, time, clock, energy, each op's share of the block
working, running    the worker's part and the command's
records, table      what is stored, and how it is shown
"""
