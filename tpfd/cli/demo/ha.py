"""The high-availability demo: replicas on DynamoDB and SQS, put through the gate."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from attrs import frozen

from tpfd.cli.demo.children import DemoFailed
from tpfd.cli.demo.ha_cluster import Cluster, cluster
from tpfd.cli.demo.ha_gate import GATE, NEED_STANDIN, Check
from tpfd.cli.demo.standin import CLIENT_ENVIRONMENT, PACKAGE, REGION, installed, standing_in
from tpfd.client.errors import first_of
from tpfd.daemon.resources import Site
from tpfd.errors import TpfdError


@frozen(kw_only=True)
class Passed:
    """How one check went.

    Attributes:
        said: what was seen, or what is wrong.
    """

    check: str
    ok: bool
    seconds: float
    said: str


@frozen(kw_only=True)
class HaDemo:
    """What to run.

    Attributes:
        folder: everything the demo writes is in it.
        endpoint: of a service that stands in for DynamoDB and SQS; empty starts one.
        replica_count: daemons, two at least.
        only: names of the checks to run; empty: all.
    """

    folder: Path
    endpoint: str
    replica_count: int
    only: tuple[str, ...]


async def run_ha_demo(work: HaDemo, tell: Callable[[Passed], None]) -> list[Passed]:
    """Runs the demo.

    Args:
        tell: told of each check as soon as it has ended.

    Raises:
        DemoFailed: there is no stand-in, or the cluster did not come up.
    """
    async with AsyncExitStack() as stack:
        standin = None
        if work.endpoint:
            site = Site(os.environ.get("AWS_REGION", REGION), work.endpoint)
        else:
            if not installed():
                raise DemoFailed(
                    f"a stand-in for DynamoDB and SQS is needed: pip install {PACKAGE}, or name one with --endpoint URL"
                )
            os.environ.update(CLIENT_ENVIRONMENT)  # for us and the replicas: nobody's own credentials go there
            standin = await stack.enter_async_context(standing_in(work.folder))
            site = Site(REGION, standin.endpoint)
        names = [chr(ord("a") + number) for number in range(work.replica_count)]
        replicas = await stack.enter_async_context(cluster(work.folder, site, standin, names))
        found = []
        for name, check in GATE:
            if (not work.only or name in work.only) and (standin is not None or name not in NEED_STANDIN):
                found.append(await _run(name, check, replicas))
                tell(found[-1])
        return found


async def _run(name: str, check: Check, replicas: Cluster) -> Passed:
    """One check. What it leaves stopped is started again for the next."""
    began_s = trio.current_time()
    ok, said = False, ""
    try:
        said = await check(replicas)
        ok = True
    except* TpfdError as group:
        said = first_of(group).message
    seconds = round(trio.current_time() - began_s, 1)
    if replicas.standin is not None and not replicas.standin.runs:
        await replicas.standin.start()
    for replica in replicas.replicas:
        if not replica.runs:
            await replica.start()
    return Passed(check=name, ok=ok, seconds=seconds, said=said)
