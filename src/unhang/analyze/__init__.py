"""Pure functions from a case to what it means: alignment, waits-for graph, divergence, lateness. No input or output."""
