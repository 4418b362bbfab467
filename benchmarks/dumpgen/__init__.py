"""Simulated distributed jobs and their flight-recorder dumps, healthy or with a fault whose truth is known."""

from dumpgen.build import Spec, build
from dumpgen.decide import decidable, suspects, why_undecidable
from dumpgen.draw import random_job
from dumpgen.faults import FAULTS, HEALTHY, NoPlace
from dumpgen.fields import Recording
from dumpgen.job import Awaited, Job, Loss, Truth
from dumpgen.schedule import Mesh, Style

__all__ = [
    "FAULTS",
    "HEALTHY",
    "Awaited",
    "Job",
    "Loss",
    "Mesh",
    "NoPlace",
    "Recording",
    "Spec",
    "Style",
    "Truth",
    "build",
    "decidable",
    "random_job",
    "suspects",
    "why_undecidable",
]
