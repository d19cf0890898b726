"""One module a command of `opwise`; console.py is what they share. cli.py puts them together."""
