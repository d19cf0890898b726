"""What the hand-written backends are held to: table.py has the bars, judging.py what recorded runs say of them."""
