"""The kernels inside a model: a transformer's block, run for seconds with each backend's kernels in it, by `opwise block`.

sizes, wiring       the block: how large, and which op follows which on which buffers
checking            right or wrong, op by op, on the very buffers
turns               the measuring: candidates in turns, time, clock, energy, what share of the block an op takes
working, running    the worker's part and the command's
records, table      what is kept, and how it is shown
"""
