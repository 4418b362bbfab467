"""The skill for agents: SKILL.md and its references, written from the rules, the decision tree, and the commands that there are."""
