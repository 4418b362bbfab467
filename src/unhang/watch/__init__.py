"""Runs a job, sees it from outside, and notices when it hangs."""
