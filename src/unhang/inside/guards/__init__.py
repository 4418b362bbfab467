"""What a training script may import: an initialisation that cannot be got wrong, and guards that stop a hang before it starts.

Lives in the user's process: the standard library, and torch where the script has imported it already. A guard acts on the
job only where it was asked to; what fails inside a guard is logged, and never raised into training.

How the ranks talk, beside the job's own collectives, each way with a limit: `board`, what each rank says of itself, for all to read at any
time; `exchange`, one value of each rank for all ranks at the same place; `worker`, the thread in which a guard waits, so that the training
never does.
"""
