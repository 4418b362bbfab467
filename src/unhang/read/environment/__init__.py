"""Environment variables: what the libraries know (tables), and where a job sets them (scripts, processes, logs)."""
