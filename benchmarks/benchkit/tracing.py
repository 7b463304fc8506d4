"""A gateway with traces: its configuration, and a collector that takes everything and keeps nothing."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from benchkit.brokers import Address
from benchkit.process import free_ports, running

_COLLECTOR = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def traces(stack: ExitStack, ratio: float, directory: Path) -> str:
    """Start a collector, in a process of its own, that ends with *stack*.

    Returns: what a gateway that traces this part of its messages has in its configuration.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-c", _COLLECTOR, str(port)]
    stack.enter_context(running(command, directory / "collector", [Address("127.0.0.1", port)]))
    return (
        '\n[[extensions]]\nplugin = "traces"\n'
        f'endpoint = "http://127.0.0.1:{port}/v1/traces"\n'
        f"sample_ratio = {ratio}\nrate_max = 1000000\n"
    )
