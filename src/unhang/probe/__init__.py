"""The live machine, asked for evidence. Every call has a time limit and reports failure as a reason, never by hanging."""
