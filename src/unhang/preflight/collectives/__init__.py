"""Verified collectives: every operation, with results compared element by element, in a process that a hang cannot keep."""
