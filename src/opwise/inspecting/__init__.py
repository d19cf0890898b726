"""What the kernels compile to, read from the machine code without a GPU.

compilers.py compiles every backend's kernels for an architecture, facts.py counts their instructions, listing.py prints them beside their
source. Sources and options are the backends' own."""
