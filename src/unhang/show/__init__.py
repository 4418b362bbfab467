"""What a diagnosis looks like: text for a terminal, JSON for programs, one HTML page for people, JUnit for schedulers."""
