"""Choices from stored records: store.py finds the figures that count, interpolate.py fills the gaps between shapes, ranking.py ranks,
query.py answers people and programs, dispatch.py calls the chosen backend."""
