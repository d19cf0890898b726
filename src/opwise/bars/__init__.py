"""The bars of the hand-written backends: table.py defines them, judging.py compares recorded runs with them."""
