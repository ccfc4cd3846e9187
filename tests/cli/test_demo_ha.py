"""The gate can fail: what a check says is told, the others still run, and the demo ends with 1."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tpfd.cli.demo.children import DemoFailed
from tpfd.cli.demo.ha_cluster import Cluster
from tpfd.cli.main import run
from tpfd.daemon.resources import Site


class ReplicaDouble:
    """A replica without a process."""

    def __init__(self) -> None:
        self.runs = True
        self.started_count = 0

    async def start(self) -> None:
        self.runs = True
        self.started_count += 1


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> ReplicaDouble:
    """The one replica of the cluster that the demo gets."""
    double = ReplicaDouble()

    @asynccontextmanager
    async def cluster(folder: Path, site: Site, *_: object) -> AsyncIterator[Cluster]:
        yield Cluster(folder, site, None, [double], "")  # type: ignore[list-item]

    monkeypatch.setattr("tpfd.cli.demo.ha.cluster", cluster)
    return double


async def works(_cluster: Cluster) -> str:
    return "all is well"


async def fails(cluster: Cluster) -> str:
    cluster.replicas[0].runs = False  # type: ignore[misc]
    raise DemoFailed("two winners")


async def fails_beside_others(cluster: Cluster) -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails, cluster)
    return "never"


def demo(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    code = run(["--output", "json", "demo", "ha", "--endpoint", "http://127.0.0.1:9", "--dir", str(folder)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("failing", [fails, fails_beside_others])
def test_a_check_that_fails_is_told_and_what_it_stopped_is_started_again(
    failing: Any,
    replica: ReplicaDouble,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tpfd.cli.demo.ha.GATE", (("first", failing), ("second", works)))
    code, found = demo(tmp_path, capsys)
    assert code == 1
    assert [(one["check"], one["ok"], one["said"]) for one in found] == [
        ("first", False, "two winners"),
        ("second", True, "all is well"),
    ]
    assert replica.started_count == 1


def test_it_ends_with_0_when_all_pass(
    replica: ReplicaDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpfd.cli.demo.ha.GATE", (("only", works),))
    assert demo(tmp_path, capsys)[0] == 0
    assert replica.started_count == 0
