"""An operator at the command line, against a real daemon: orphans, refused answers, the feed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import trio

from tests.e2e.processes import TPFD, Daemon, configure, running, serving, wait_until
from tests.e2e.test_drain import ORDER
from tpfd.core.tokens import Claims, SigningKey, sign

SECRET = "s" * 32
GONE = "01GONE00000000000000000000.s001.000000000"
CLAIMS = Claims("default", GONE, GONE, GONE.partition(".")[0], "somebody-was-asked", 1, 0)


async def tpfd(daemon: Daemon, *arguments: str) -> Any:
    """Runs the command line; what it printed."""
    done = await trio.run_process(
        [*TPFD, "--url", daemon.url, "--output", "json", *arguments], capture_stdout=True, stderr=subprocess.DEVNULL
    )
    return json.loads(done.stdout)


async def waiting(daemon: Daemon) -> dict[str, Any]:
    """Submits an order; the interaction it waits for."""
    execution = await daemon.submit(ORDER)
    await daemon.wait_status(execution, "WAITING_EXTERNAL")
    pending: list[dict[str, Any]] = await tpfd(daemon, "pending")
    return next(one for one in pending if one["executionId"] == execution)


def accepted(asked: dict[str, Any], note: str) -> dict[str, Any]:
    order = asked["requestPayload"]["orderId"]
    return {"accepted": {"orderId": order, "decidedAt": "2026-11-30T12:00:00Z", "note": note}}


async def test_an_orphan_is_found_matched_and_seen_in_the_history(tmp_path: Path) -> None:
    secrets = {"resume-token-secrets": [{"env": "RESUME_SECRET"}]}
    config = configure(tmp_path, "a", "example:restaurant-approval", **{"await": secrets})
    async with serving(tmp_path, config, RESUME_SECRET=SECRET) as daemon:
        asked = await waiting(daemon)
        answer = accepted(asked, "by phone")
        token = sign(CLAIMS, SigningKey(None, SECRET.encode()))
        body = {"resumeToken": token, "responsePayload": answer, "actor": "kitchen"}
        refused = await daemon.client.post("/pipeline/interactions/complete", json=body)
        assert refused.status_code == 404

        (orphan,) = await tpfd(daemon, "orphans")
        assert (orphan["interactionId"], orphan["actor"], orphan["responsePayload"]) == (GONE, "kitchen", answer)
        assert orphan["lateId"] in refused.json()["detail"]
        matched = await tpfd(daemon, "orphans", "match", orphan["lateId"], asked["interactionId"], "--actor", "maria")
        assert (matched["executionId"], matched["duplicate"]) == (asked["executionId"], False)
        await daemon.wait_status(asked["executionId"], "SUCCEEDED")
        again = await tpfd(daemon, "orphans", "match", orphan["lateId"], asked["interactionId"])
        assert again["duplicate"] is True
        assert await tpfd(daemon, "orphans") == []

        contradiction = {"interactionId": asked["interactionId"], "responsePayload": accepted(asked, "no, by mail")}
        assert (await daemon.client.post("/pipeline/interactions/complete", json=contradiction)).status_code == 409
        history = await tpfd(daemon, "history", asked["executionId"])
        assert [one["reason"] for one in history["late"]] == ["matched", "conflicting"]
        facts = [one["type"] for one in history["facts"]]
        assert facts.index("BoundaryCompletionAdmitted") < facts.index("BoundaryCompletionConflicting")


async def test_watch_begins_now_and_after_0_replays(tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "example:restaurant-approval")
    async with serving(tmp_path, config) as daemon:
        before = await waiting(daemon)
        watch = ["--url", daemon.url, "--output", "json", "watch"]
        async with running("now", watch, tmp_path) as now, running("all", [*watch, "--after", "0"], tmp_path) as replay:

            async def seen(process: Any) -> set[str]:
                lines = process.log.with_suffix(".out").read_text().splitlines()
                return {json.loads(line)["executionId"] for line in lines}

            async def replayed() -> bool:
                return before["executionId"] in await seen(replay)

            await wait_until("the replay", replayed)
            later: set[str] = set()

            async def new_ones() -> bool:
                later.add((await waiting(daemon))["executionId"])
                return bool(later & await seen(now))

            await wait_until("what happens now", new_ones)
            assert before["executionId"] not in await seen(now)
