"""From stored records to a choice: store.py finds the figures that count, interpolate.py fills the gaps between them, ranking.py ranks,
query.py answers for people and programs, dispatch.py calls what was chosen."""
