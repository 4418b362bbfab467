"""What is kept of a job: its folders, the bundle, and what is left out of it because it is secret."""
