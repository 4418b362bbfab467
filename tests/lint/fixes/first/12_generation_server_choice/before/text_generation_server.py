import torch
from flask import Flask, jsonify, request
from flask_restful import Api, Resource

import mpu
from text_generation_utils import generate

GENERATE_NUM = 0


class MegatronGenerate(Resource):
    def __init__(self, model):
        self.model = model

    @staticmethod
    def send_do_generate():
        choice = torch.cuda.LongTensor([GENERATE_NUM])
        torch.distributed.broadcast(
            choice,
            mpu.get_tensor_model_parallel_src_rank(),
            group=mpu.get_tensor_model_parallel_group(),
        )

    def put(self):
        sentences = request.get_json()["sentences"]
        if len(sentences) > 128:
            return "Maximum number of sentences is 128", 400
        tokens_to_generate = request.get_json().get("tokens_to_generate", 64)

        MegatronGenerate.send_do_generate()
        resp_sentences, output_logits = generate(self.model, sentences, tokens_to_generate)
        return jsonify({"sentences": resp_sentences, "logits": output_logits})


class MegatronServer:
    def __init__(self, model):
        self.app = Flask(__name__, static_folder="static", static_url_path="")
        api = Api(self.app)
        api.add_resource(MegatronGenerate, "/generate", resource_class_args=[model])

    def run(self, url):
        self.app.run(url, threaded=True, debug=False)
