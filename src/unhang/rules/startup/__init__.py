"""Rules on startup."""
