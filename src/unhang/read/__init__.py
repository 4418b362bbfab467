"""Files -> evidence: one file per format. Nothing here executes or trusts what a file says."""

from unhang.read.bundle import read_bundle, read_paths

__all__ = ["read_bundle", "read_paths"]
