"""What a console that is open, and Prometheus, ask a gateway: a process of its own beside what is measured.

    python -m benchkit.instead.polling PORT TOKEN

A line on its standard input begins, the next one ends it; then a line of JSON says how long each scrape took, in
seconds. It ends with its standard input.
"""

import http.client
import json
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

#: What is asked for, and how often, in seconds. Of the console's pages those that one leaves open: the overview,
#: which every page asks for, and the list of destinations.
METRICS: Final = "/metrics"
ASKED: Final = (
    (METRICS, 5.0),
    ("/health/ready", 2.0),
    ("/api/v1/show-overview", 2.0),
    ("/api/v1/list-destinations?sort=pending&limit=5", 5.0),
    ("/api/v1/list-destinations?sort=pending&limit=50", 5.0),
    ("/history?range=15m", 30.0),
)
#: The first of each kind come one after the other, as when a page is opened, and not at once.
_APART_S: Final = 0.1
_ANSWER_S: Final = 60.0


@dataclass(slots=True)
class Polling:
    """Asks one gateway. Attributes: scrapes: how long each took, in seconds."""

    port: int
    token: str
    scrapes: list[float] = field(default_factory=list[float])

    def run(self) -> None:
        """Ask until there is something to read on standard input. Raises: OSError, http.client.HTTPException."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        begin = time.monotonic()
        due = {path: begin + number * _APART_S for number, (path, _) in enumerate(ASKED)}
        while True:
            path = min(due, key=lambda each: due[each])
            wait = max(0.0, due[path] - time.monotonic())
            if select.select([sys.stdin], [], [], wait)[0]:
                break
            took = self._ask(client, path)
            if path == METRICS:
                self.scrapes.append(took)
            due[path] += dict(ASKED)[path]
        client.close()

    def _ask(self, client: http.client.HTTPConnection, path: str) -> float:
        begin = time.perf_counter()
        client.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        answer = client.getresponse()
        answer.read()
        if answer.status != 200:
            raise OSError(f"{path} is answered with {answer.status}")
        return time.perf_counter() - begin


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    while sys.stdin.readline():
        polling = Polling(int(arguments[0]), arguments[1])
        polling.run()
        sys.stdin.readline()
        print(json.dumps(polling.scrapes), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
