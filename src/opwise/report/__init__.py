"""Records for people: terminal tables, Markdown."""
