"""`WeightSync`: the learner's side, the generators' side, and what they write to each other in a store."""

from __future__ import annotations

from unhang.inside.guards.weights.learner import WeightSync as WeightSync
