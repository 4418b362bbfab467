"""Rules on data."""
