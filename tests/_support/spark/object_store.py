"""An S3 server on loopback for tests, moto's, in a process of its own, with one bucket; Google's clients take it for theirs.

Google's XML interface is S3's, but for how one says who asks and that a put is conditional.

In a process of its own because delta-rs keeps Python's lock during some requests, and because it must be
possible to stop it and restart it with the same objects. Run as a program it serves until its stdin ends.
"""

import importlib
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

BUCKET = "lake"
ACCESS_KEY = "AKIATIDEGATE"
SECRET_KEY = "s3cr3t-of-the-test"
REGION = "us-east-1"
_AMAZON = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/{REGION}/s3/aws4_request, Signature=0"


class ObjectStore:
    """A server that runs. Attributes: endpoint."""

    def __init__(self, *, is_conditional: bool = True) -> None:
        """Args: is_conditional: it heeds If-None-Match; else it is as stores were before they did."""
        command = [sys.executable, "-W", "ignore", str(Path(__file__)), str(int(is_conditional))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self._is_reachable = True
        boto3: Any = importlib.import_module("boto3")
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
        )

    @property
    def storage_options(self) -> dict[str, str]:
        """For delta-rs."""
        return {
            "aws_endpoint_url": self.endpoint,
            "aws_allow_http": "true",
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": REGION,
        }

    @property
    def google_options(self) -> dict[str, str]:
        """For delta-rs, to which it is Google's; nobody is asked who he is."""
        account = {
            "gcs_base_url": self.endpoint,
            "disable_oauth": True,
            **dict.fromkeys(("client_email", "private_key", "private_key_id"), SECRET_KEY),
        }
        return {"google_service_account_key": json.dumps(account), "allow_http": "true"}

    def names(self, prefix: str = "") -> list[str]:
        """The names of all objects that begin so."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def set_reachable(self, reachable: bool) -> None:
        """Let it accept connections, or refuse them; its objects stay."""
        if reachable != self._is_reachable:
            self._say("listen" if reachable else "refuse")
            self._is_reachable = reachable

    def set_answering(self, answers: bool) -> None:
        """Let it answer, or only accept connections and requests; what it did not answer it has not done."""
        self._say("answer" if answers else "hang")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline(), "the server ended"

    def close(self) -> None:
        """End it."""
        self.client.close()
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


def _serve(is_conditional: bool) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server: Any = importlib.import_module("moto.moto_server.werkzeug_app")
    serving: Any = importlib.import_module("werkzeug.serving")
    backends: Any = importlib.import_module("moto.s3.models")
    app = server.DomainDispatcherApplication(server.create_backend_app)
    answers = threading.Event()
    answers.set()
    one_at_a_time = threading.Lock()

    def serve(environ: dict[str, Any], respond: Any) -> Any:
        if not answers.is_set():
            answers.wait()
            raise ConnectionAbortedError  # whoever asked has gone
        if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":  # there is none yet
            environ["HTTP_IF_NONE_MATCH"] = "*"
        if not environ.get("HTTP_AUTHORIZATION", "").startswith("AWS"):
            environ["HTTP_AUTHORIZATION"] = _AMAZON  # the only kind that moto knows
        if not is_conditional:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if "HTTP_IF_NONE_MATCH" in environ:
            with one_at_a_time:  # moto looks whether there is one, and writes, in two steps
                return app(environ, respond)
        return app(environ, respond)

    def start(port: int) -> Any:
        made = serving.make_server("127.0.0.1", port, serve, threaded=True)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        return made

    made = start(0)
    port = made.server_port
    backends.s3_backends["123456789012"]["aws"].create_bucket(BUCKET, REGION)
    print(port, flush=True)
    for line in sys.stdin:
        match line.strip():
            case "refuse":
                made.shutdown()
                made.server_close()
            case "listen":
                made = start(port)
            case "hang":
                answers.clear()
            case _:
                answers.set()
        print("done", flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1] == "1")
