import logging

import ray

import data_loader as data_loader_lib

logger = logging.getLogger(__name__)


def cleanup_training_resources(stop_event, executor, queues, actor_manager):
    stop_event.set()
    try:
        ray.kill(ray.get_actor(data_loader_lib.DATA_PREP_ACTOR_NAME))
    except (ray.exceptions.RayError, ValueError) as e:
        logger.warning(f"Could not shut down DataPreparationActor: {e}")
    logger.info("Signaling all actors to stop...")
    ray.get(actor_manager.set_should_stop.remote(True))
    ray.get(actor_manager.cleanup.remote())
    for queue in queues:
        queue.shutdown()
    executor.shutdown(wait=True)
    logger.info("Cleaned up")


def run_training(args, policy_group, data_prep, stop_event, executor, queues, actor_manager):
    try:
        for step in range(args.num_training_steps):
            batches = ray.get([data_prep.get_data.remote(rank, step) for rank in range(args.world_size)])
            ray.get([m.step.remote(b) for m, b in zip(policy_group.models, batches)])
    finally:
        cleanup_training_resources(stop_event, executor, queues, actor_manager)
