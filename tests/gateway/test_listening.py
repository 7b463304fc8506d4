"""What listeners begin with before anything else is there. The rest of them: test_gateway.py, test_reloading.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidegate.listening import begin_early
from tidegate.plugin_exit import PluginExitError

EARLY = """
    from tidegate.spi import PluginInfo, hookimpl

    tidegate_plugin = PluginInfo(summary="begins early", spi_version=(1, 0))
    began = []


    class Factory:
        options_type = PluginInfo  # some dataclass
        transports = ("tcp",)
        default_port = 1

        async def begin(self):
            began.append("begun")
            {more}

        def create(self, config, broker): ...


    @hookimpl
    def register_front_end():
        return Factory()
"""


async def test_those_that_want_to_begin_early_once_for_each_listener(site) -> None:
    site.add_toys()
    site.add("early", {"protocol-early": "early"}, EARLY.replace("{more}", ""))
    site.add("broken", {"protocol-broken": "broken"}, "raise ImportError")
    # What has nothing to begin, is broken or is not there is passed over: resolving tells of it.
    await begin_early(["toy", "early", "broken", "missing", "early"], site.host())
    assert sys.modules["early"].began == ["begun", "begun"]


async def test_an_exit_there_is_an_error_of_the_plugin(site) -> None:
    site.add("early", {"protocol-early": "early"}, EARLY.replace("{more}", "raise SystemExit(3)"))
    with pytest.raises(PluginExitError, match="plugin protocol-early"):
        await begin_early(["early"], site.host())


@pytest.mark.parametrize(
    ("imported", "not_yet"),
    [
        # Readiness is to be answered soon: what comes before it imports nothing that it does not need.
        ("tidegate.cli._main, tidegate_admin.plugin", "tidegate.broker typer rich uvicorn starlette"),
        ("tidegate_admin.server.main", "tidegate_admin.server.openapi prometheus_client tidegate.config"),
    ],
)  # fmt: skip
def test_what_comes_before_readiness_is_little(imported: str, not_yet: str) -> None:
    code = f"import sys, {imported}; print(*set({not_yet.split()!r}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
