"""Who waits for whom or for what, and whether it can ever end."""
