"""`unhang lint`: collectives that can hang, found in the code before the first run. Nothing of the code is run."""
