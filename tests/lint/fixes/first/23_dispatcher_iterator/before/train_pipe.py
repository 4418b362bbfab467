import torch
from accelerate import Accelerator
from torchdata.datapipes.iter import FileLister, FileOpener

from dispatch_loader import DataLoaderDispatcher


def build_pipe(root):
    pipe = FileLister(root, "*.txt")
    pipe = FileOpener(pipe, mode="rt").readlines(return_path=False)
    return pipe.shuffle().map(lambda line: torch.tensor([float(x) for x in line.split()]))


def main(root):
    accelerator = Accelerator()
    loader = DataLoaderDispatcher(build_pipe(root), batch_size=16)
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in loader:
        loss = model(batch).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
