"""Looks from outside at a job that was started without `unhang`."""
