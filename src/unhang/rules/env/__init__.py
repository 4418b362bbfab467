"""Judges environment variables: each by its name and its value, and all of one source together."""

from unhang.rules.env.judge import EnvVerdict, judge_settings
from unhang.rules.env.opinion import shown

__all__ = ["EnvVerdict", "judge_settings", "shown"]
