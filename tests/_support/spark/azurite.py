"""Azure's blob storage on loopback for tests: Microsoft's own emulator, Azurite, with one container.

A package of npm, installed once below ``build/``. It speaks Azure's blob interface with a flat namespace; the other
one, of Data Lake Storage (``dfs``), it does not have.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlencode

from built import building
from free_ports import free_port

_DIRECTORY = Path(__file__).parents[3] / "build" / "azurite"
_PACKAGE = "azurite@3.37.0"
_PROGRAM = _DIRECTORY / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
_API = "2021-08-06"
_START_TIMEOUT = 120.0

CONTAINER = "lake"
ACCOUNT = "devstoreaccount1"
#: Azurite's own, which its documentation has.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def installed() -> Path:
    """The program, installed when it is not."""
    with building(_DIRECTORY):
        if not _PROGRAM.is_file():
            (_DIRECTORY / "package.json").write_text("{}")
            done = subprocess.run(
                ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", _PACKAGE],
                cwd=_DIRECTORY,
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )  # fmt: skip
            assert done.returncode == 0, f"npm install failed:\n{done.stderr}"
    return _PROGRAM


class Azurite:
    """A server that runs. Attributes: endpoint (of the account)."""

    def __init__(self, directory: Path) -> None:
        """Args: directory: for what it holds."""
        node = shutil.which("node")
        assert node is not None, "there is no node"
        self._port = free_port()
        self._command = [
            node, str(installed()), "--blobHost", "127.0.0.1", "--blobPort", str(self._port),
            "--location", str(directory), "--silent", "--disableTelemetry", "--skipApiVersionCheck",
        ]  # fmt: skip
        self.endpoint = f"http://127.0.0.1:{self._port}/{ACCOUNT}"
        self._process: subprocess.Popen[bytes] | None = None
        self.set_reachable(True)
        self._ask("PUT", CONTAINER, restype="container")

    @property
    def storage_options(self) -> dict[str, str]:
        """For delta-rs."""
        return {
            "azure_storage_endpoint": self.endpoint,
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "allow_http": "true",
        }

    def names(self, prefix: str = "") -> list[str]:
        """The names of all objects that begin so."""
        answer = self._ask("GET", CONTAINER, comp="list", prefix=prefix, restype="container")
        return re.findall("<Name>(.*?)</Name>", answer)

    def set_reachable(self, reachable: bool) -> None:
        """Let it run, or end it; its objects stay."""
        if not reachable:
            self.close()
        elif self._process is None:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                urllib.request.urlopen(self.endpoint, timeout=10).close()
            except urllib.error.HTTPError as answer:  # it wants to know who asks
                answer.close()
                return
            except OSError:
                assert time.monotonic() < end, "azurite does not answer"
                time.sleep(0.05)

    def _ask(self, method: str, path: str, **query: str) -> str:
        """One request of the blob interface, signed as it wants it (Shared Key)."""
        date = email.utils.formatdate(usegmt=True)
        fields = "".join(f"\n{key}:{value}" for key, value in sorted(query.items()))
        text = (
            f"{method}{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{_API}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{path}{fields}"
        )
        digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
        request = urllib.request.Request(
            f"{self.endpoint}/{quote(path)}?{urlencode(query)}",
            method=method,
            headers={
                "x-ms-date": date,
                "x-ms-version": _API,
                "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode()

    def close(self) -> None:
        """End it, and let it write down what it holds: after a kill it would know of nothing."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
