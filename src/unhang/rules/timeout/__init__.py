"""Causes that the timeouts of the ranks show, side by side."""
