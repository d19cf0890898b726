"""What a torch program calls of the five ops: counted while it runs, stored, and asked which backend each would take."""
