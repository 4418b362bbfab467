import torch
import torch.distributed as dist


class Trainer:
    def __init__(self, state, uploader, save_path, remote_name):
        self.state, self.uploader = state, uploader
        self.save_path, self.remote_name = save_path, remote_name

    def save_checkpoint(self):
        state_dict = self.state.state_dict()
        if dist.get_rank() == 0:
            torch.save(state_dict, self.save_path)
            self.uploader.upload_file(self.remote_name, self.save_path)
        dist.barrier()

    def fit_end(self):
        self.save_checkpoint()
        self.uploader.wait_for_workers(self.state.device)

    def evaluate(self, loader):
        total = torch.zeros(1, device=self.state.device)
        for batch in loader:
            total += self.state.model(batch).mean().detach()
        dist.all_reduce(total)
        return total.item()

    def run(self, eval_loader):
        self.fit_end()
        return self.evaluate(eval_loader)
