import time

import ray


def wait_for_step(replay_buffer, step, max_age, max_num_steps):
    wait_iterations = 0
    while True:
        ready = ray.get(replay_buffer.has_complete_batch.remote(step))
        if ready:
            need_lookahead = max_age > 0 and step + 1 < max_num_steps
            if not need_lookahead or ray.get(replay_buffer.has_complete_batch.remote(step + 1)):
                break
        wait_iterations += 1
        time.sleep(1.0)
    return wait_iterations


def async_grpo_train(policy, replay_buffer, collector, config, start_step):
    step = start_step
    wait_for_step(replay_buffer, step, config.max_trajectory_age_steps, config.max_num_steps)
    while step < config.max_num_steps:
        batch = None
        while batch is None:
            batch = ray.get(replay_buffer.sample.remote(step))
            if batch is None:
                time.sleep(0.5)
        policy.train(batch)
        policy.refit()
        step += 1
        ray.get(collector.set_weight_version.remote(step))
        if step % config.save_period == 0:
            policy.save_checkpoint(step)
            ray.get(replay_buffer.save.remote(f"{config.checkpoint_dir}/buffer_{step}"))
