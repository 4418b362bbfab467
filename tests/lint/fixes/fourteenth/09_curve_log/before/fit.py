import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from meters import Curves, Running

EPOCHS = 4
ACCUMULATE = 2


def digits(count, seed):
    gen = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (count,), generator=gen)
    x = torch.randn(count, 1, 16, 16, generator=gen) + y[:, None, None, None] / 10
    return TensorDataset(x, y)


def net():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 49, 10)
    )


def train_epoch(accelerator, model, opt, loader, loss_fn):
    loss_meter, acc_meter = Running(), Running()
    model.train()
    for images, labels in loader:
        with accelerator.accumulate(model):
            out = model(images)
            loss = loss_fn(out, labels)
            accelerator.backward(loss.mean())
            opt.step()
            opt.zero_grad()
        right = (out.argmax(1) == labels).float()
        if accelerator.is_main_process:
            losses, rights = accelerator.gather_for_metrics((loss.detach(), right))
            loss_meter.add(losses)
            acc_meter.add(rights)
    return loss_meter, acc_meter


def main():
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE)
    model = net()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(digits(9000, 0), batch_size=32, shuffle=True)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    curves = Curves()

    for epoch in range(EPOCHS):
        loss_meter, acc_meter = train_epoch(accelerator, model, opt, loader, loss_fn)
        if accelerator.is_main_process:
            curves.note(epoch, loss_meter, acc_meter)

    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
