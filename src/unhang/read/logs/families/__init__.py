"""What each program prints: a file has `PATTERNS`, and is found by being here."""
