"""One file per rule. A rule is found by its folder, tested from its EXAMPLES, and documented from its docstring."""
