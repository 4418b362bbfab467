import json

from distributed import gather_tensor, is_master


class TestReporter:
    candidate_fields = ("id", "question_id", "image_id", "scores")

    def __init__(self, dataset, path):
        self.dataset = dataset
        self.path = path
        self.report = []

    def reshape_and_gather(self, report, key):
        if key in report:
            gathered = gather_tensor(report[key])
            report[key] = gathered.flatten(0, 1)
        return report

    def add_to_report(self, report, model):
        for key in self.candidate_fields:
            report = self.reshape_and_gather(report, key)
        results = self.dataset.format_for_prediction(report)
        if hasattr(model, "format_for_prediction"):
            results = model.format_for_prediction(results, report)
        elif hasattr(model.module, "format_for_prediction"):
            results = model.module.format_for_prediction(results, report)
        self.report = self.report + results

    def flush(self):
        if is_master():
            with open(self.path, "w") as f:
                json.dump(self.report, f)
