"""What the source of the program says: conditions, loops, names, and what may differ between ranks."""
