"""Who owns something that several gateways can reach."""

from __future__ import annotations

import os
import subprocess
import sys

from tidegate.spi.machine.owners import describe, is_gone, make_owner, process_identity


def test_an_owner_is_gone_only_when_this_machine_says_so() -> None:
    me = make_owner("gateway|with a bar")
    assert not is_gone(me)
    assert describe(me).startswith("gateway_with a bar on ")
    boot, space, pid, started = process_identity().split("/")
    assert int(pid) == os.getpid()
    assert is_gone(f"g|h|r|{boot}/{space}/{pid}/{int(started) - 1}")
    assert is_gone(f"g|h|r|{boot}/{space}/4194304000/{started}")
    assert not is_gone(f"g|h|r|other-boot/{space}/{pid}/0")
    assert not is_gone(f"g|h|r|{boot}/pid:[1]/{pid}/0")
    assert not is_gone("")
    assert not is_gone("g|h|r|")
    assert describe("") == "nobody"


def test_a_process_that_has_ended_is_gone_before_its_parent_asks() -> None:
    script = "from tidegate.spi.machine.owners import make_owner; print(make_owner('g'))"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        owner = child.stdout.read().strip()  # to its end: the process may still be on its way out
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert is_gone(owner)
    assert is_gone(owner)
