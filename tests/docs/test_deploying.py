"""deploy/ and docs/deploying.md: what they name is there, and they agree with each other."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from tidegate.cli._app import app
from tidegate.cli._exit import ExitCode
from tidegate.config import BrokerConfig, Config, parse_bind, parse_config
from tidegate.spi import parse_size

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TEXT = (ROOT / "docs" / "deploying.md").read_text()
UNIT = (DEPLOY / "tidegate.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()
COMMAND: Any = typer.main.get_command(app)


class Unit(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def service() -> configparser.SectionProxy:
    unit = Unit(strict=True)
    unit.read_string(UNIT)
    return unit["Service"]


def check_command(words: list[str]) -> None:
    """There is such a command, with these options."""
    command = COMMAND.commands[words[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words[1:] if word.startswith("-")} <= known, words


def test_systemd_understands_the_unit_and_finds_nothing_wrong(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, ".ci/run installs it"
    path = tmp_path / "tidegate.service"
    path.write_text(UNIT.replace("/opt/tidegate/bin/tidegate", sys.executable))
    done = subprocess.run([analyze, "verify", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    seen = subprocess.run(
        [analyze, "security", "--offline=true", path], capture_output=True, text=True, check=False
    )
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", seen.stdout)
    assert exposure is not None, seen.stdout + seen.stderr
    assert float(exposure[1]) <= 2.0


def test_the_unit_s_commands_are_commands() -> None:
    for key, command in (("ExecStart", "run"), ("ExecReload", "reload")):
        program, *words = service()[key].split()
        assert program == "/opt/tidegate/bin/tidegate"
        assert words[0] == command
        check_command(words)


def test_the_unit_is_told_what_the_gateway_tells() -> None:
    found = service()
    assert found["Type"] == "notify"
    assert int(found["WatchdogSec"]) >= 30
    prevented = {int(code) for code in found["RestartPreventExitStatus"].split()}
    assert prevented == {ExitCode.CONFIG, ExitCode.PLUGIN}
    limit = BrokerConfig().connections_max * 5 + 512
    assert int(found["LimitNOFILE"]) >= limit


def test_the_image_has_the_rooms_that_it_names_and_no_root() -> None:
    rooms = re.findall(r"/src(/[\w/]+)", CONTAINER)
    assert len(rooms) >= 9
    for room in rooms:
        assert (ROOT / room.strip("/") / "pyproject.toml").is_file(), room
    assert re.findall(r"^USER (\S+)$", CONTAINER, re.MULTILINE) == ["10001:10001"]
    for source in re.findall(r"^COPY (deploy/\S+)", CONTAINER, re.MULTILINE):
        assert (ROOT / source).is_file()
    (arguments,) = re.findall(r"^CMD (\[.*\])$", CONTAINER, re.MULTILINE)
    check_command(yaml.safe_load(arguments))
    assert re.search(r"HEALTHCHECK[^\n]*\\\n  CMD \[.*/health/live'", CONTAINER)


def ports(config: Config) -> dict[str, int]:
    return {item.protocol: parse_bind(item.bind, 0).port for item in config.listeners}


def test_the_configuration_of_the_image_is_one_and_lets_nobody_in_without_a_user() -> None:
    config = parse_config((DEPLOY / "tidegate.toml").read_text())
    assert str(config.broker.data_directory) == "/var/lib/tidegate"
    assert [item.plugin for item in config.extensions] == ["auth-file"]
    assert all(item.allow_anonymous is None for item in config.listeners)
    exposed = re.search(r"^EXPOSE (.*)$", CONTAINER, re.MULTILINE)
    assert exposed is not None
    listening = ports(config)
    assert {int(port) for port in exposed[1].split()} == {listening["stomp"], listening["mqtt"]}
    assert listening["admin"] == 8161


@pytest.fixture
def manifests() -> dict[str, Any]:
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {item["kind"]: item for item in found}


def test_the_manifest_agrees_with_itself_and_the_image(manifests: dict[str, Any]) -> None:
    assert set(manifests) == {"ConfigMap", "Service", "StatefulSet"}
    config = parse_config(manifests["ConfigMap"]["data"]["tidegate.toml"])
    pod = manifests["StatefulSet"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    listening = ports(config)
    assert named == {name: listening[name] for name in ("stomp", "mqtt")}
    served = {port["targetPort"]: port["port"] for port in manifests["Service"]["spec"]["ports"]}
    assert served == named
    assert manifests["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert mounts["data"] in config.broker.data_directory.parents
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | {"data"}
    assert set(mounts) == volumes
    (claim,) = manifests["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    users = Path(str(config.extensions[0].options["users"]))
    assert users.parent == mounts["users"]
    check_command(container["args"])
    assert f"USER {pod['spec']['securityContext']['runAsUser']}:" in CONTAINER
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"] is True
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}


def test_its_probes_ask_for_health_and_it_has_time_to_drain(manifests: dict[str, Any]) -> None:
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    asked = {
        name: re.findall(
            r"127\.0\.0\.1:8161(/[a-z/]+)", " ".join(container[name]["exec"]["command"])
        )
        for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert asked == {
        "startupProbe": ["/health/live"],
        "livenessProbe": ["/health/live"],
        "readinessProbe": ["/health/ready"],
    }
    program, *words = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "tidegate"
    check_command(words)
    drained_s = int(words[words.index("--timeout") + 1].removesuffix("s"))
    assert pod["terminationGracePeriodSeconds"] >= drained_s + 60


def test_the_defaults_in_the_document_are_the_defaults() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)`[^|]*\| ([\d.]+ [GM])iB \|$", TEXT, re.MULTILINE)
    assert len(rows) == 7
    for name, size in rows:
        assert getattr(BrokerConfig(), name) == parse_size(size.replace(" ", "") + "b"), name
    assert f"`connections_max` ({BrokerConfig().connections_max:,})" in TEXT
    assert "`LimitNOFILE=65536`" in TEXT
    for name in re.findall(r"deploy/([\w.]+)", TEXT):
        assert (DEPLOY / name).is_file()
