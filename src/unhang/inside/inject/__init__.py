"""Faults on purpose: done to a job from outside, without a change to its script.

All of it lives in the job's processes as well, and needs nothing but the standard library; torch is used once the program has it.
"""
