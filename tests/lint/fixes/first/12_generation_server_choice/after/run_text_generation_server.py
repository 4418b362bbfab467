import torch

import mpu
from initialize import initialize_megatron
from model_provider import model_provider
from text_generation_server import MegatronServer
from text_generation_utils import generate


def main():
    initialize_megatron()
    model = model_provider().cuda().half()
    model.eval()

    if mpu.is_pipeline_first_stage() and mpu.get_tensor_model_parallel_rank() == 0:
        server = MegatronServer(model)
        server.run("0.0.0.0")

    while True:
        choice = torch.cuda.LongTensor(1)
        torch.distributed.broadcast(choice, 0)
        if choice[0].item() == 0:
            generate(model)


if __name__ == "__main__":
    main()
