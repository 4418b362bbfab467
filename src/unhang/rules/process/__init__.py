"""Rules on process."""
