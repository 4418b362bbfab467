"""Rules on what a job left behind (calls, stacks, ends, lines of logs), by subject."""
