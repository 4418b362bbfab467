import os
from pathlib import Path

import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from huggingface_hub import HfApi

CACHE_DIR = Path(os.environ.get("COMPILE_CACHE", "/var/tmp/compile-cache"))


def list_entries(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in {".neff", ".pb", ".json"})


def push_cache(folder, repo_id):
    """Uploads new compilation artefacts to the hub repository."""
    if xr.global_ordinal() == 0:
        api = HfApi()
        known = set(api.list_repo_files(repo_id))
        for entry in list_entries(folder):
            name = str(entry.relative_to(folder))
            if name not in known:
                api.upload_file(path_or_fileobj=str(entry), path_in_repo=name, repo_id=repo_id)
    xm.rendezvous("push_cache")


def pull_cache(folder, repo_id):
    if xr.global_ordinal() == 0:
        HfApi().snapshot_download(repo_id, local_dir=str(folder))
    xm.rendezvous("pull_cache")
