"""Before a job starts: what is read on the machines (one file per fact), and what the ranks test together.

`checking.check` is the front door; docs/design/0007-check.md says what stands where, and how to add a check.
"""
