"""The instruments: what the machine is, what its roofs are, whether an output is right, how long a launch takes.

Nothing here imports the rest of opwise, and modules import each other by relative imports alone, so that today's instruments can be
loaded beside an old commit's ops and backends. Nothing touches the GPU at import.
"""
