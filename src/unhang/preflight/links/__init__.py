"""The search for bad ranks and links: collectives on changing groups of ranks, planned by group testing."""
