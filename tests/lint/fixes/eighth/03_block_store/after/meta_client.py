import json
import urllib.request


class MetaClient:
    def __init__(self, endpoint, timeout=3.0):
        self.endpoint = endpoint
        self.timeout = timeout

    def _call(self, route, payload):
        body = json.dumps(payload).encode()
        request = urllib.request.Request(f"{self.endpoint}/{route}", data=body)
        with urllib.request.urlopen(request, timeout=self.timeout) as reply:
            return json.loads(reply.read())

    def begin_write(self, payload):
        return self._call("begin_write", payload)

    def end_write(self, payload):
        return self._call("end_write", payload)
