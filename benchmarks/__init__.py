"""What asv tracks, commit after commit. Nothing here imports torch: asv forks a process for each value that it looks up."""
