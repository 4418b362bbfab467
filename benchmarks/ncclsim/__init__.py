"""Jobs on NCCL, simulated from below: hosts that run ahead of devices, streams, watchdogs and their counters, and dumps of them."""

from ncclsim.faults import FAULTS, NoPlace, Scene, Truth
from ncclsim.jobs import Job, job_of, random_job
from ncclsim.program import Style
from ncclsim.write import Recording

__all__ = ["FAULTS", "Job", "NoPlace", "Recording", "Scene", "Style", "Truth", "job_of", "random_job"]
