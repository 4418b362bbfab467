"""Rules on readings: what was read on the machines, by subject; loaded only where something was read."""
