"""The benchmark's own arithmetic and files: a wrong ratio would be believed."""

import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from rich.console import Console

from tidegate.spi import Action, Identity
from tidegate_acl._extension import Acl, AclOptions

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # the scripts there are no distribution

access = importlib.import_module("benchkit.access")
brokers = importlib.import_module("benchkit.brokers")
choice = importlib.import_module("benchkit.choice")
generator = importlib.import_module("benchkit.generator")
machine = importlib.import_module("benchkit.machine")
process = importlib.import_module("benchkit.process")
report = importlib.import_module("benchkit.report")
files = importlib.import_module("benchkit.results")
scenarios = importlib.import_module("benchkit.scenarios")
bench = importlib.import_module("bench")


def run(broker: str, turn: int, rate: float, scenario: str = "stomp-1x1", **more: Any) -> Any:
    return report.Run(scenario, broker, turn, rate=rate, **more)


def results(*runs: Any) -> Any:
    made = report.Results()
    made.runs.extend(runs)
    return made


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [([7.0], 0.5, 7.0), ([3, 1, 2], 0.5, 2), (range(100), 0.99, 99), (range(200), 0.99, 198)],
)
def test_percentile_is_the_nearest_rank(values: Any, fraction: float, expected: float) -> None:
    assert report.percentile(list(values), fraction) == expected


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        report.percentile([], 0.5)


def test_ratio_is_the_median_over_rounds_that_both_finished() -> None:
    made = results(
        run("tidegate", 1, 200.0),
        run("tidegate", 2, 300.0),
        run("tidegate", 3, 900.0),
        run("artemis", 1, 100.0),  # 2
        run("artemis", 2, 100.0),  # 3
        run("artemis", 3, 0.0, error="refused"),
    )
    assert made.ratio("stomp-1x1", "artemis") == 2.5
    assert made.ratio("stomp-1x1", "classic") is None


def test_a_rate_goal_is_reached_at_its_factor_and_missed_below() -> None:
    goal = scenarios.RateGoal("stomp-1x1", "artemis", 1.3)
    for ours, reached in ((130.0, True), (129.0, False)):
        made = results(run("tidegate", 1, ours), run("artemis", 1, 100.0))
        assert [verdict.reached for verdict in report.judge(made, [goal])] == [reached]


@pytest.mark.parametrize(
    ("confirm", "reached"), [(400.0, True), (401.0, False), (80.0, True), (79.0, False)]
)
def test_a_floor_goal_needs_a_ratio_that_is_low_and_possible(confirm: float, reached: bool) -> None:
    floor = report.Floor(80.0, 300.0, 20.0)
    made = results(
        run("tidegate", 1, 1.0, "stomp-window1", confirm_p50=confirm, floor=floor),
        run("tidegate", 2, 1.0, "stomp-window1", confirm_p50=9e9),  # no floor beside it
    )
    goal = scenarios.FloorGoal("stomp-window1", 4.0)
    assert made.floor_ratio("stomp-window1", "tidegate") == confirm / 100
    assert [verdict.reached for verdict in report.judge(made, [goal])] == [reached]


@pytest.mark.parametrize(("mib", "reached"), [(200.0, True), (199.0, False)])
def test_a_goal_for_large_messages_is_a_share_of_what_dd_writes(mib: float, reached: bool) -> None:
    name = "stomp-1x1-1m"
    made = results(
        run("tidegate", 1, mib, name, bytes_rate=mib * (1 << 20), raw_write=400.0, raw_burst=1e3),
        run("tidegate", 2, 9e9, name, bytes_rate=9e9),  # no dd beside it
    )
    assert made.write_ratio(name, "tidegate") == mib / 400
    verdicts = report.judge(made, [scenarios.WriteGoal(name, 0.5)])
    assert [verdict.reached for verdict in verdicts] == [reached]
    console = Console(file=io.StringIO(), width=240)
    console.print(report.table(made, scenarios.SCENARIOS[name]))
    assert isinstance(console.file, io.StringIO)
    assert f"{mib / 400:.2f}x" in console.file.getvalue()
    assert "dd oflag=dsync bs=1M" in console.file.getvalue()
    assert "2.50x" in console.file.getvalue()  # what a burst of 64 MiB is of it


def test_what_dd_writes_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    assert machine.measure_raw_write(tmp_path, count=2) > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="dd failed"):
        machine.measure_raw_write(tmp_path / "missing", count=1)


def test_the_journal_types_are_the_same_gateway_with_another_store_table() -> None:
    options = bench.parse_arguments(["--peers", "none", "--journal-types"])
    options.tidegate_command = Path(sys.executable)
    targets = bench.choose_targets(options)
    assert [target.spec.name for target in targets] == ["tidegate", *brokers.JOURNAL_TYPES]
    types: list[str] = []
    for target in targets[1:]:
        text = brokers.tidegate_config(Path("/x"), {"stomp": 1}, target.spec.store_options)
        store = tomllib.loads(text)["store"]
        assert store.pop("plugin") == "journal"
        types.append(store.pop("journal_type"))
        assert store == {}
    assert types == ["ASYNCIO", "MAPPED"]
    options = bench.parse_arguments(["--peers", "none"])
    options.tidegate_command = Path(sys.executable)
    assert [target.spec.name for target in bench.choose_targets(options)] == ["tidegate"]


def test_access_control_is_the_same_gateway_with_a_hundred_rules(tmp_path: Path) -> None:
    options = bench.parse_arguments(["--peers", "none", "--acl"])
    options.tidegate_command = Path(sys.executable)
    targets = bench.choose_targets(options)
    assert [target.spec.name for target in targets] == ["tidegate", brokers.WITH_ACL]
    spec = targets[1].spec
    file = tmp_path / "rules.toml"
    file.write_text(spec.rules)
    config = brokers.tidegate_config(Path("/x"), {"stomp": 1}, spec.store_options, file)
    (extension,) = tomllib.loads(config)["extensions"]
    assert extension == {"plugin": "acl", "rules": str(file)}
    acl = Acl(AclOptions(rules=file))
    assert len(acl.rules.rules) == access.RULES
    client = Identity("anonymous", frozenset(), "bench-1", "127.0.0.1", "mqtt")
    for action, name in (
        (Action.PUBLISH, "topic://bench.mqtt-qos1-4x1.0"),
        (Action.SUBSCRIBE, "topic://bench.mqtt-qos1-4x1.0"),
        (Action.CONSUME, "queue://bench.stomp-1x1.0"),
        (Action.CREATE, "queue://bench.stomp-1x1.0"),
    ):
        (rule,) = acl.rules.decide(client, action, name).rules
        assert rule is not None
        assert rule.number == access.RULES, "the last one"
        assert rule.allows


@pytest.mark.parametrize(("rate", "reached"), [(95.0, True), (94.0, False)])
def test_the_goal_of_access_control_is_a_share_of_the_rate_without(
    rate: float, reached: bool
) -> None:
    made = results(run("tidegate", 1, 100.0), run(brokers.WITH_ACL, 1, rate))
    (verdict,) = report.judge(made, [scenarios.AclGoal("stomp-1x1", 0.95)])
    assert verdict.reached is reached
    assert verdict.text.endswith(f": {rate / 100:.2f} times")


def test_a_goal_without_runs_has_no_verdict() -> None:
    assert report.judge(results(), scenarios.GOALS) == []


def test_every_goal_names_a_scenario_and_a_known_peer() -> None:
    for goal in scenarios.GOALS:
        # Large messages are measured apart: they leave a disk busy for what comes next.
        large = isinstance(goal, scenarios.WriteGoal)
        assert scenarios.SCENARIOS[goal.scenario].default is not large
        assert getattr(goal, "peer", "artemis") in brokers.PEERS


def test_faults_and_cost_come_out_of_the_generators_report() -> None:
    quantiles = {"p50": 1.0, "p99": 2.0, "max": 3.0}
    found = report.run_from_report(
        "stomp-1x1",
        "artemis",
        1,
        {
            "total_sent": 50_000,
            "messages_per_s": 10.0,
            "bytes_per_s": 2560.0,
            "seconds": 2.0,
            "deliveries_per_s": 40.0,
            "confirm_us": quantiles,
            "end_to_end_us": quantiles,
            "generator_cpu_s": 0.1,
            "settle_seconds": 0.0,
            "lost": 0,
            "duplicates": 2,
            "out_of_order": 0,
            "corrupt": 0,
            "misrouted": 0,
            "unexpected_confirms": 1,
        },
        1.5,
    )
    assert found.broker_cpu_100k == 3.0
    assert found.deliveries_rate == 40.0
    assert found.faults == "2 duplicate, 1 confirmed unasked"
    assert report.generator_bound([found]) == []


def test_the_table_shows_medians_ratio_durability_and_failures() -> None:
    made = results(
        run("tidegate", 1, 3000.0),
        run("artemis", 1, 1000.0),
        run("artemis", 2, 2000.0, faults="7 out of order"),
        run("classic", 1, 0.0, error="refused [x]"),
    )
    console = Console(file=io.StringIO(), width=240)
    console.print(report.table(made, scenarios.SCENARIOS["stomp-1x1"]))
    assert isinstance(console.file, io.StringIO)
    rows = {line.split()[1]: line for line in console.file.getvalue().splitlines() if "│" in line}
    assert "1,500" in rows["artemis"]
    assert "1,000..2,000" in rows["artemis"]
    assert "3.00x" in rows["artemis"]
    assert "synced (NIO journal); 7 out of order" in rows["artemis"]
    assert "failed: refused [x]" in rows["classic"]


def test_a_load_without_durable_subscribers_is_not_called_synced() -> None:
    artemis = brokers.BROKERS["artemis"]
    loads = scenarios.SCENARIOS
    assert "synced" in loads["mqtt-qos1-4x1"].durability(artemis)
    assert "memory" in loads["mqtt-qos1-4x1-clean"].durability(artemis)
    assert "memory" in loads["stomp-topic-1x4"].durability(artemis)


def test_what_goes_to_many_is_counted_by_delivery_too_and_qos_0_has_no_confirmation() -> None:
    load = scenarios.SCENARIOS["mqtt-qos0-1x100"]
    assert (load.copies, scenarios.SCENARIOS["mqtt-qos1-4x1"].copies) == (100, 1)
    assert scenarios.SCENARIOS["stomp-4x4-1q"].copies == 1, "a queue's consumers share"
    assert scenarios.SCENARIOS["stomp-topic-1x4"].copies == 4
    assert load.durability(brokers.BROKERS["tidegate"]) == "never confirmed (QoS 0)"
    made = results(
        run("tidegate", 1, 700.0, load.name, deliveries_rate=70_000.0),
        run("mosquitto", 1, 0.0, load.name, error="refused"),
    )
    console = Console(file=io.StringIO(), width=240)
    console.print(report.table(made, load))
    assert isinstance(console.file, io.StringIO)
    rows = {line.split()[1]: line for line in console.file.getvalue().splitlines() if "│" in line}
    cells = [cell.strip() for cell in rows["tidegate"].split("│")]
    assert cells[2:4] == ["70,000", "700"]
    assert cells[5:7] == ["-", "-"], "no confirmations, no times of them"
    assert "failed: refused" in rows["mosquitto"]


def test_mqtt_5_loads_are_for_brokers_that_speak_it() -> None:
    load = scenarios.SCENARIOS["mqtt5-qos1-4x1"]
    assert "-protocol=mqtt5" in load.arguments(brokers.BROKERS["tidegate"])
    able = {name for name, spec in brokers.BROKERS.items() if load.suits(spec)}
    assert able == {*brokers.OURS, "artemis", "mosquitto"}
    assert all(
        scenarios.SCENARIOS["mqtt-qos1-4x1"].suits(spec) for spec in brokers.BROKERS.values()
    )


def test_the_goals_of_mqtt_are_printed_like_the_others() -> None:
    name = "mqtt-qos1-4x1"
    made = results(
        run("tidegate", 1, 150.0, name),
        run("artemis", 1, 100.0, name),
        run("mosquitto", 1, 251.0, name),
    )
    assert [(v.text, v.reached) for v in report.judge(made, scenarios.GOALS)] == [
        (f"{name}: at least 1.5 times artemis: 1.50 times", True),
        (f"{name}: at least 0.6 times mosquitto: 0.60 times", False),
    ]


def test_the_generated_config_is_toml_for_both_protocols() -> None:
    text = brokers.tidegate_config(Path('/tmp/a "b"\\c'), {"stomp": 7001, "mqtt": 7002})
    assert tomllib.loads(text) == {
        "broker": {"name": "bench", "data_directory": '/tmp/a "b"\\c'},
        "listeners": [
            {"protocol": "stomp", "bind": "127.0.0.1:7001"},
            {"protocol": "mqtt", "bind": "127.0.0.1:7002"},
        ],
    }


def test_artemis_gets_its_consumer_window_and_mqtt_no_stomp_headers() -> None:
    artemis = brokers.BROKERS["artemis"]
    stomp = scenarios.SCENARIOS["stomp-1x1"].arguments(artemis)
    assert "-subscribe-header=consumer-window-size:1000000" in stomp
    assert "-send-header=destination-type:ANYCAST" in stomp
    mqtt = scenarios.SCENARIOS["mqtt-qos1-4x1"].arguments(artemis)
    assert "-clean=false" in mqtt
    assert not [argument for argument in mqtt if "header" in argument]


def test_four_queues_are_four_names() -> None:
    spec = brokers.BROKERS["tidegate"]
    arguments = scenarios.SCENARIOS["stomp-4x4-4q"].arguments(spec)
    (names,) = (a.partition("=")[2] for a in arguments if a.startswith("-destination="))
    assert len(set(names.split(","))) == 4


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x"])
def test_an_address_that_is_not_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        brokers.Address.parse(text)


def test_a_peer_given_by_address_is_not_started() -> None:
    options = bench.parse_arguments(
        ["--peers=none", "--no-tidegate", "--artemis-stomp=h:1", "--artemis-login=u:p"]
    )
    (target,) = bench.choose_targets(options)
    assert (target.ours, target.user, target.password) == (False, "u", "p")
    assert target.speaks("stomp")
    assert not target.speaks("mqtt")


def test_names_between_commas_are_chosen_and_none_are_all() -> None:
    assert choice.chosen("", "part", {"a": 1, "b": 2}) == ["a", "b"]
    assert choice.chosen("b, a,", "part", "ab") == ["b", "a"]


def test_a_load_generator_that_gives_no_report_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "loadgen"
    script.write_text("#!/bin/sh\necho $2 $3 >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(generator, "LOADGEN", script)
    with pytest.raises(RuntimeError, match="-timeout=5s -x"):
        generator.report_of(["-x"], 5.0)
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(RuntimeError, match="exit code 3"):
        generator.report_of([], 5.0)
    script.write_text("""#!/bin/sh\necho '{"error": "2 lost", "lost": 2}'\n""")
    assert generator.report_of([], 5.0)["lost"] == 2
    with pytest.raises(RuntimeError, match="2 lost"):
        generator.good_report_of([], 5.0)


def test_an_unknown_scenario_or_peer_is_named() -> None:
    with pytest.raises(bench.SetupError, match="nonesuch"):
        bench.choose_scenarios("stomp-1x1,nonesuch")
    with pytest.raises(bench.SetupError, match="activemq"):
        bench.choose_targets(bench.parse_arguments(["--no-tidegate", "--peers=activemq"]))


def test_cpu_and_session_are_read_past_a_command_with_spaces_and_parentheses() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    line = f"42 (a) b (c)) S 1 42 77 0 -1 0 0 0 0 0 {ticks} {2 * ticks} 0 0 20 0"
    assert process.stat_fields(line) == (77, 3.0)


def test_stopping_a_broker_ends_all_that_it_started(tmp_path: Path) -> None:
    # The inner shell ignores SIGTERM and leaves the process group, as a daemon would.
    command = ["bash", "-c", "(set -m; (trap '' TERM; sleep 300; sleep 300) &) ; exec sleep 300"]
    with process.running(command, tmp_path / "log", []) as broker:
        session = broker._process.pid
        assert session in process.session_processes(session)
    assert process.session_processes(session) == {}


def test_a_broker_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    port = free_port()
    command = ["bash", "-c", "echo no such key; exit 3"]
    with (
        pytest.raises(process.BrokerStartError, match="no such key"),
        process.running(command, tmp_path / "log", [brokers.Address("127.0.0.1", port)]),
    ):
        pytest.fail("it was taken for ready")


def test_the_floor_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    measured = machine.measure_floor(tmp_path, count=5)
    assert 0 < measured.sync_p50_us <= measured.sync_p99_us
    assert measured.p50_us == measured.sync_p50_us + measured.echo_p50_us > measured.sync_p50_us
    assert list(tmp_path.iterdir()) == []


def test_the_result_file_holds_command_machine_and_every_run(tmp_path: Path) -> None:
    made = results(run("tidegate", 1, 5.0, floor=report.Floor(90.0, 200.0, 15.0)))
    path = tmp_path / "deep" / "result.json"
    heading = files.Heading(["bench.py", "--quick"], {"cpu": "x"}, {"tidegate": "1"})
    files.write(path, heading, runs=[asdict(run) for run in made.runs])
    document = json.loads(path.read_text())
    assert document["command"] == ["bench.py", "--quick"]
    assert (document["machine"], document["versions"]) == ({"cpu": "x"}, {"tidegate": "1"})
    assert document["runs"][0]["floor"] == {
        "sync_p50_us": 90.0,
        "sync_p99_us": 200.0,
        "echo_p50_us": 15.0,
    }
    assert document["runs"][0]["rate"] == 5.0


@pytest.mark.long
@pytest.mark.skipif(shutil.which("go") is None, reason="the load generator needs Go")
def test_the_load_generators_own_tests_pass() -> None:
    done = subprocess.run(
        ["go", "test", "-timeout", "240s", "./..."],
        cwd=BENCHMARKS / "loadgen",
        env=os.environ | {"GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
