"""`unhang check`: what is wrong with the machines, before a job starts on them."""
