import deepspeed
import torch.distributed as dist

from pipeline_loader import PipelineLoader


def main(args, pipeline_model, parameters, dataset, ds_config, get_optimizer):
    engine, optimizer, _, _ = deepspeed.initialize(
        args=args,
        model=pipeline_model,
        model_parameters=parameters,
        optimizer=get_optimizer,
        config=ds_config,
    )
    loader = PipelineLoader(dataset, engine, engine.gradient_accumulation_steps())
    engine.set_dataloader(loader)
    batches = iter(loader) if engine.is_first_stage() or engine.is_last_stage() else None
    step = 0
    while loader.epoch <= args.epochs:
        engine.reset_activation_shape()
        loss = engine.train_batch(batches)
        step += 1
        loader.sync_epoch()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
