"""Everything that runs inside the user's training process: recorder, guards, integrations, injected faults.

The bootstraps of the recorder and of the faults load this folder as `_unhang_inside`, where unhang need not be importable.
"""
