"""What compilers make of the kernels, read off the machine code without a GPU.

compilers.py has every backend's kernels compiled for an architecture, facts.py counts what is in them, listing.py prints them beside
their source. Nothing here decides how a kernel runs: the sources and the options are the backends' own.
"""
