"""Profiles of one implementation: a trace of its calls, its kernels with grids and rates, its stacks, its memory.

It may import `measure` and `runner`; nothing that is timed for a run imports it."""
