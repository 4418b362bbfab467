import torch
import torch.distributed as dist

from engine import DeepSpeedLight


def pretrain(model, loader, save_dir, epochs=3):
    ddp = torch.nn.parallel.DistributedDataParallel(model.cuda())
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-4)
    engine = DeepSpeedLight(ddp, optimizer)
    step = 0
    for epoch in range(epochs):
        for batch in loader:
            loss = ddp(batch.cuda()).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        if dist.get_rank() == 0:
            engine.save_checkpoint(save_dir, f"epoch{epoch + 1}_step{step}", {"epoch": epoch})
