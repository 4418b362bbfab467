"""Proof: programs that fail as the job did, and tables of what passes and what fails."""
