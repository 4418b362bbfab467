"""unhang: why a distributed PyTorch job hangs, the rank, the line and the cause, in seconds."""

__version__ = "0.1.0"
