"""What operators do: re-drive executions, one at a time or by a filter."""

from __future__ import annotations

from tpfd.core.records import ExecutionStatus
from tpfd.http.auth import Access
from tpfd.http.bodies import Members
from tpfd.http.envelopes import execution_view
from tpfd.http.messages import Response, json_response
from tpfd.http.routing import Call, Operation, Route

MAX_REDRIVE_COUNT = 200
"""Re-drives of one request: they are paced, and must be done well within its deadline."""
MAX_VERSION = 2**53
_BULK_STATUSES = (ExecutionStatus.FAILED, ExecutionStatus.DLQ)


async def redrive(call: Call) -> Response:
    """Puts one execution back to work."""
    members = Members.of_body(call.body)
    expected_version = members.whole("expectedVersion", lowest=0, highest=MAX_VERSION)
    reason = members.text("reason", required=True)
    allow_failed = members.flag("allowFailed")
    confirmed_stopped = members.flag("confirmedStopped")
    actor = members.text("actor") or call.caller.name
    members.check()
    record = await call.service.redrive(
        call.tenant,
        call.params["id"],
        expected_version=expected_version,
        reason=reason or "",
        allow_failed=allow_failed,
        confirmed_stopped=confirmed_stopped,
        actor=actor,
    )
    return json_response(202, execution_view(record, call.service.held_reason(record)))


async def redrive_many(call: Call) -> Response:
    """Puts one slice of what a filter finds back to work, or only counts it."""
    members = Members.of_body(call.body)
    wanted = members.text("status", required=True)
    if wanted is not None and wanted not in _BULK_STATUSES:
        members.problem(
            "status", "expected FAILED or DLQ; an unknown outcome is re-driven one at a time, with confirmedStopped"
        )
    reason = members.text("reason", required=True)
    pipeline = members.text("pipeline")
    error_code = members.text("errorCode")
    limit = members.whole("limit", lowest=1, highest=MAX_REDRIVE_COUNT, default=MAX_REDRIVE_COUNT)
    cursor = members.text("cursor")
    dry_run = members.flag("dryRun")
    actor = members.text("actor") or call.caller.name
    members.check()
    report = await call.service.redrive_many(
        call.tenant,
        status=wanted or "",
        pipeline=pipeline,
        error_code=error_code,
        reason=reason or "",
        limit=limit,
        cursor=cursor,
        dry_run=dry_run,
        actor=actor,
    )
    return json_response(
        200,
        {
            "count": len(report.execution_ids),
            "executionIds": list(report.execution_ids),
            "dryRun": dry_run,
            "cursor": report.cursor,
        },
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        template="/tpf/admin/tenants/{tenant}/executions/{id}/redrive",
        access=Access.OPERATE,
        handler=redrive,
        operation=Operation(
            summary="Put an execution back to work", body="Redrive", answers={202: ("queued", "Execution")}
        ),
    ),
    Route(
        method="POST",
        template="/tpf/admin/tenants/{tenant}/executions/redrive",
        access=Access.OPERATE,
        handler=redrive_many,
        operation=Operation(
            summary="Put executions that a filter finds back to work, one slice at a time",
            body="RedriveMany",
            answers={200: ("what was done, or with dryRun would be", "RedriveReport")},
        ),
    ),
)
