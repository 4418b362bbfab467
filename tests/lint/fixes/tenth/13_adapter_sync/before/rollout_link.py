import json
import urllib.request


class RolloutLink:
    def __init__(self, url):
        self.url = url

    def _post(self, what, **body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{what}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def pause(self):
        self._post("pause")

    def reload(self, folder, version):
        self._post("reload_adapter", folder=folder, version=version)

    def resume(self):
        self._post("resume")
