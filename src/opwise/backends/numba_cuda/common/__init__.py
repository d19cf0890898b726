"""What the ops share: instructions, device functions, launches, cubins on disk."""
