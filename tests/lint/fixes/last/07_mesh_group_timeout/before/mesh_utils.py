from torch.distributed.device_mesh import init_device_mesh


def create_device_mesh(config, world_size):
    model_parallel = config.pp_size * config.tp_size * config.cp_size
    assert world_size % model_parallel == 0
    dp_size = world_size // model_parallel
    shape = (config.pp_size, dp_size, config.cp_size, config.tp_size)
    names = ("pp", "dp", "cp", "tp")
    return init_device_mesh("cuda", shape, mesh_dim_names=names)
