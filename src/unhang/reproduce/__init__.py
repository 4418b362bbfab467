"""Small deterministic reproductions of a hang: a program, reduced, that hangs as the job did."""
