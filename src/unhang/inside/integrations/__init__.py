"""The guards inside Lightning, Hugging Face Trainer, Accelerate, DeepSpeed and Ray Train; scripts use `unhang.integrations`.

Nothing here is imported before the script asks for it, and no framework is imported that the script does not use.
"""
