import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import SequentialSampler

from dataloader import MultipackDistributedDataloader


def train(cfg, model, dataset, collate_fn):
    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    model = DDP(model.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    loader = MultipackDistributedDataloader(
        dataset, collate_fn, [len(x["input_ids"]) for x in dataset], cfg.sequence_len, cfg.batch_size,
        SequentialSampler(dataset), dist.get_rank(), dist.get_world_size(),
    )
    for _ in range(cfg.epochs):
        for batch in loader:
            loss = model(**{k: v.to(device) for k, v in batch.items()}).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
