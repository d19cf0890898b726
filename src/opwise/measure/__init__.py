"""Instruments: the machine's facts, its roofs, checks of outputs, and timing of launches.

Nothing here imports the rest of opwise, and modules import each other by relative imports only, so that today's instruments can be loaded
beside an old commit's ops and backends. Nothing touches the GPU at import."""
