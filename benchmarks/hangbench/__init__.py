"""The hang benchmark: trainings with known faults and healthy ones, and how often the verdict on them is right."""
