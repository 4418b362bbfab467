"""Rules on jobs that run, or end, without having trained."""
