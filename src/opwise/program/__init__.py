"""Calls of the five ops by a torch program: counted while it runs, stored, and assigned a backend."""
