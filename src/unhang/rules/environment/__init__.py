"""Rules about settings: environment variables that break a job."""
