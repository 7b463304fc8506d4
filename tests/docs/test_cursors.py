"""docs/cursors.md has a row for every name of the two chapters, and no other; its examples run."""

import re
from pathlib import Path

import pytest

from tidegate.cli import main
from tidegate.config import Config, check_parts, parse_config, resolve
from tidegate.config._document_names import DocumentName, snake_case
from tidegate.config._paging_names import PAGING_NAMES
from tidegate.config._policy_names import CURSOR_NAMES, ELSEWHERE, SPELLINGS
from tidegate.plugins import PluginHost

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "cursors.md"
TEXT = DOCUMENT.read_text()
NAMES = (*CURSOR_NAMES, *PAGING_NAMES)

#: What the chapters have, apart from the code.
FUSE = """pendingQueuePolicy pendingSubscriberPolicy pendingDurableSubscriberMessageStoragePolicy
    vmQueueCursor fileQueueCursor storeCursor vmCursor fileCursor vmDurableCursor
    fileDurableSubscriberCursor destinationPolicy policyMap policyEntries policyEntry queue topic"""
ARTEMIS = """address-full-policy PAGE BLOCK FAIL DROP max-size-bytes max-size-messages page-size-bytes
    max-read-page-messages max-read-page-bytes prefetch-page-messages prefetch-page-bytes
    page-limit-bytes page-limit-messages page-full-policy page-max-cache-size global-max-size
    global-max-messages paging-directory page-sync-timeout max-disk-usage min-disk-free
    slow-consumer-threshold slow-consumer-policy NOTIFY KILL slow-consumer-check-period
    slow-consumer-threshold-measurement-unit"""


def rows() -> dict[str, tuple[str, str]]:
    """By name: what it is here, and what else the row says."""
    found: dict[str, tuple[str, str]] = {}
    for line in TEXT[TEXT.index("## Names of the documents") :].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                assert name not in found, f"{name} has two rows"
                found[name] = cells[1], cells[2]
    return found


def test_every_name_of_the_chapters_has_a_row_and_is_known_to_the_program() -> None:
    values = {value for name in NAMES for value in name.values}
    for name in (*FUSE.split(), *ARTEMIS.split()):
        assert name in rows(), f"{name} has no row"
        assert name in SPELLINGS or name in ELSEWHERE or name in values


def test_the_rows_are_what_the_program_accepts_and_nothing_else() -> None:
    accepted = {written for name in NAMES for written in name.written}
    values = {value for name in NAMES for value in name.values}
    assert set(rows()) == accepted | values | set(ELSEWHERE)
    assert set(SPELLINGS) == accepted | {snake_case(name) for name in accepted}
    assert {name for name, (here, _) in rows().items() if here == "no key"} == set(ELSEWHERE)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.written[0])
def test_each_row_says_what_the_name_is_here(name: DocumentName) -> None:
    for written in name.written:
        assert tuple(re.findall(r"`([a-z_]+)`", rows()[written][0])) == name.options
    for value, ours in name.values.items():
        assert rows()[value][0] == (f'`"{ours}"`' if ours else "paging")


def examples() -> list[str]:
    return re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("example", examples())
def test_every_example_is_a_configuration_that_would_run(example: str, tmp_path: Path) -> None:
    config: Config = parse_config(example)
    assert len(config.destinations) == example.count("[[destinations]]")
    resolved = resolve(config, PluginHost())
    check_parts(resolved)


def test_what_check_config_is_said_to_print_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = re.search(r"```\n\$ tidegate (check-config .*?)\n(.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    monkeypatch.chdir(tmp_path)
    Path("tidegate.toml").write_text(examples()[0])
    assert main(shown[1].split()) == 0
    assert capsys.readouterr().out.startswith(shown[2])
