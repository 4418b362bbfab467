"""The command line: thin files, one for each command or for a few of one kind."""
