import torch.distributed as dist

from train_utils import calc_params_l2_norm


def training_log(model_chunks, losses, iteration, cfg, writer):
    params_norm = None
    if cfg.log_params_norm and iteration % cfg.log_interval == 0:
        params_norm = calc_params_l2_norm(model_chunks)
    if iteration % cfg.log_interval == 0 and dist.get_rank() == dist.get_world_size() - 1:
        line = f"iteration {iteration} lm loss {losses['lm loss']:.5f}"
        if params_norm is not None:
            line += f" params norm {params_norm:.3f}"
            writer.add_scalar("params-norm", params_norm, iteration)
        print(line, flush=True)
