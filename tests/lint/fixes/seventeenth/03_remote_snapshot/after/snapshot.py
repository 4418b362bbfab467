import os
import tempfile
import urllib.parse

import boto3
import torch
import torch.distributed as dist


def local_rank():
    return int(os.environ.get("LOCAL_RANK", 0))


def node_rank():
    return int(os.environ.get("GROUP_RANK", 0))


class ObjectStore:
    def __init__(self, uri):
        parts = urllib.parse.urlparse(uri)
        self.bucket = parts.netloc
        self.prefix = parts.path.strip("/")
        self.client = boto3.client("s3")

    def get(self, name, destination):
        self.client.download_file(self.bucket, f"{self.prefix}/{name}", destination)

    def put(self, source, name):
        self.client.upload_file(source, self.bucket, f"{self.prefix}/{name}")


class SnapshotManager:
    """Keeps run snapshots in an object store, one file per save."""

    def __init__(self, store, scratch=None):
        self.store = store
        self.scratch = scratch or os.path.join(tempfile.gettempdir(), f"snapshots-{node_rank()}")
        os.makedirs(self.scratch, exist_ok=True)

    def fetch(self, name):
        path = os.path.join(self.scratch, os.path.basename(name))
        try:
            if local_rank() == 0:
                self.store.get(name, path)
                header = torch.load(path, map_location="cpu", mmap=True)
                if "model" not in header:
                    raise ValueError(f"{name} is not a training snapshot")
        finally:
            dist.barrier()
        return path

    def restore(self, name, model, optimizer, scheduler):
        state = torch.load(self.fetch(name), map_location="cpu")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        return state["epoch"] + 1

    def save(self, epoch, model, optimizer, scheduler):
        if dist.get_rank() != 0:
            return
        path = os.path.join(self.scratch, f"ep{epoch}.pt")
        torch.save(
            {
                "epoch": epoch,
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            },
            path,
        )
        self.store.put(path, f"ep{epoch}.pt")
