"""Rules on collective."""
