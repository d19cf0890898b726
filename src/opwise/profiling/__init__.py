"""Where the time of one implementation goes: a trace of its calls, its kernels with their grids and rates, its stacks, its memory.

It stands on the right of `measure` and `runner`, and on the left of the commands: nothing that is timed for a run imports it.
"""
