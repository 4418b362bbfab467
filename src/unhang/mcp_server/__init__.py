"""`unhang mcp`: the commands as tools for agents. Each tool runs a command as a process, and says in few words what came of it."""
