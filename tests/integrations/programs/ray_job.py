"""Two workers of Ray Train, twice: the second time one of them raises where the other waits for it, and the driver sets a variable too late."""

import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from unhang.integrations import ray_train_loop, ray_training

FOLDER = sys.argv[1]


def train_loop(config: dict[str, Any]) -> None:
    model = prepare_model(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if config["fault"] == "fault" and step == 2 and dist.get_rank() == 1:
            raise ValueError("a broken sample")
        optimizer.zero_grad()
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        ray_training().step()
    Path(FOLDER, f"steps-{dist.get_rank()}").write_text(str(ray_training().steps))


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True, object_store_memory=100 << 20)
for fault in ("healthy", "fault"):
    if fault == "fault":
        os.environ["NCCL_DEBUG"] = "WARN"  # the workers have the environment of the cluster
    trainer = TorchTrainer(
        ray_train_loop(train_loop, f"{FOLDER}/{fault}"),
        train_loop_config={"fault": fault},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=FOLDER + "/ray", name=fault),
    )
    try:
        trainer.fit()
        print("ENDED WELL", fault, flush=True)
    except Exception as error:  # noqa: BLE001
        print("FAILED", fault, error, flush=True)
ray.shutdown()
