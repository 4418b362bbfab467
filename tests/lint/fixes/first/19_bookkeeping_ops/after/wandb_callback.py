import torch.distributed as dist
import wandb


class WandBCallback:
    def __init__(self, project, cancel_check_interval=25, cancel_tags=("cancel", "canceled")):
        self.cancel_check_interval = cancel_check_interval
        self.cancel_tags = cancel_tags
        self.run = wandb.init(project=project) if dist.get_rank() == 0 else None

    def post_step(self, trainer):
        if dist.get_rank() == 0 and trainer.global_step % self.cancel_check_interval == 0:
            trainer.run_bookkeeping_op(
                self.check_if_canceled, trainer, allow_multiple=False, distributed=False
            )

    def check_if_canceled(self, trainer):
        api = wandb.Api(api_key=wandb.api.api_key)
        run = api.run(self.run.path)
        for tag in run.tags or []:
            if tag.lower() in self.cancel_tags:
                trainer._canceling_rank = dist.get_rank()
