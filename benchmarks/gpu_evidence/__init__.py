"""Real NCCL jobs of a few ranks on one device, each with a fault that is known: their dumps, logs and stacks, labelled."""
