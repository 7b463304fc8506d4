"""The benchmark of the stores: what is started, and what is judged."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

from tidegate.config import load_config, resolve
from tidegate.plugins import PluginHost

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

stores = importlib.import_module("stores")
servers = importlib.import_module("benchkit.postgres")


@pytest.mark.parametrize(
    "variant", [v for v in stores.VARIANTS if v.store is not None], ids=lambda v: v.name
)
def test_every_variant_is_a_configuration_that_the_gateway_takes(
    tmp_path: Path, variant: Any
) -> None:
    server = servers.Postgres(5432, "15") if variant.needs_postgres else None
    text = stores.tidegate_config(tmp_path / "data", {"stomp": 1})
    path = tmp_path / "gw.toml"
    path.write_text(text + stores.store_lines(variant, server, 2))
    assert tomllib.loads(path.read_text())["store"]["plugin"] in ("journal", "jdbc", "journaled")
    resolved = resolve(load_config(path), PluginHost())
    url = getattr(resolved.store.options, "url", "")
    assert url == (server.url if server else "")


def test_goals_are_judged_by_medians_of_what_did_not_fail() -> None:
    results = [
        stores.Result("sqlite", n, rate) for n, rate in enumerate((1000.0, 3000.0, 2000.0), 1)
    ]
    results += [stores.Result("classic-kahadb", 1, 1100.0)]
    results += [stores.Result("journal", 1, 100.0, error="it ended at once")]
    assert stores.judge(results) == [(False, "sqlite is 1.82 times classic-kahadb (at least 2)")]


def test_wrong_options_are_refused() -> None:
    for arguments in (["--only", "oracle"], ["--rounds", "0"], ["--duration", "0"]):
        with pytest.raises(SystemExit):
            stores.parse_arguments(arguments)


@pytest.mark.skipif(servers.binaries() is None, reason="needs PostgreSQL")
def test_the_server_of_the_benchmark_starts_and_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "free_ports", lambda _: [free_port()])
    # Not below pytest's own directory: the server is another user, who may not enter that.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with servers.postgres(Path(folder)) as server:
            assert server.version.startswith(tuple("123456789"))
            assert server.url.endswith(f":{server.port}/bench")
        shutil.rmtree(Path(folder) / "postgres")
