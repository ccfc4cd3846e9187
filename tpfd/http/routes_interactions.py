"""Interactions: what waits for an answer, the answer, and the two streams."""

from __future__ import annotations

from tpfd.http.auth import Access
from tpfd.http.bodies import Members
from tpfd.http.envelopes import completed_view, interaction_view, late_view, read_completion
from tpfd.http.events import event_stream
from tpfd.http.messages import Response, json_response
from tpfd.http.provider_stream import provider_stream
from tpfd.http.routes_executions import MAX_PAGE_COUNT, PAGE_COUNT, paged
from tpfd.http.routing import Call, Operation, Route


async def pending(call: Call) -> Response:
    """A page of interactions that wait for an answer."""
    page = await call.service.pending(
        call.tenant,
        step_id=call.query.text("stepId"),
        assignee=call.query.text("assignee"),
        group=call.query.text("group"),
        limit=call.query.count("limit", default=PAGE_COUNT, highest=MAX_PAGE_COUNT),
        cursor=call.query.text("cursor"),
    )
    return paged(call, [interaction_view(record) for record in page.records], page.cursor)


async def complete(call: Call) -> Response:
    """Answers an interaction."""
    members = Members.of_body(call.body)
    tenant = call.tenant_with(members.text("tenantId"))
    completion = read_completion(members, tenant, usual_actor=call.caller.name)
    return json_response(200, completed_view(await call.service.complete(completion)))


async def orphans(call: Call) -> Response:
    """Completions that found no open interaction."""
    page = await call.service.late(
        call.tenant,
        None,
        limit=call.query.count("limit", default=PAGE_COUNT, highest=MAX_PAGE_COUNT),
        cursor=call.query.text("cursor"),
    )
    return paged(call, [late_view(record) for record in page.records], page.cursor)


async def match_orphan(call: Call) -> Response:
    """Admits an orphan as the answer to an interaction that an operator names."""
    members = Members.of_body(call.body)
    interaction_id = members.text("interactionId", required=True)
    actor = members.text("actor") or call.caller.name
    members.check()
    completed = await call.service.match_orphan(
        call.tenant, call.params["id"], interaction_id=interaction_id or "", actor=actor
    )
    return json_response(200, completed_view(completed))


_PAGE_QUERY = {"limit": f"records at most, 1 to {MAX_PAGE_COUNT}", "cursor": "from the Link of the page before"}
PENDING_OPERATION = Operation(
    summary="List interactions that wait for an answer",
    query={
        "stepId": "only those of this step",
        "assignee": "only those of this person",
        "group": "only those of this group",
        **_PAGE_QUERY,
    },
    answers={200: ("a page", "Interactions")},
)
COMPLETE_OPERATION = Operation(
    summary="Answer an interaction", body="Completion", answers={200: ("admitted, or a repeat", "Completed")}
)

ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        template="/pipeline/interactions/pending",
        access=Access.READ,
        handler=pending,
        operation=PENDING_OPERATION,
    ),
    Route(
        method="POST",
        template="/pipeline/interactions/complete",
        access=Access.COMPLETE,
        handler=complete,
        operation=COMPLETE_OPERATION,
    ),
    Route(
        method="GET",
        template="/pipeline/interactions/orphans",
        access=Access.OPERATE,
        handler=orphans,
        operation=Operation(
            summary="List completions that found no open interaction",
            query=_PAGE_QUERY,
            answers={200: ("a page", "LateCompletions")},
        ),
    ),
    Route(
        method="POST",
        template="/pipeline/interactions/orphans/{id}/match",
        access=Access.OPERATE,
        handler=match_orphan,
        operation=Operation(
            summary="Admit an orphan as the answer to an interaction",
            body="Match",
            answers={200: ("admitted, or a repeat", "Completed")},
        ),
    ),
    Route(
        method="GET",
        template="/pipeline/interactions/stream",
        access=Access.COMPLETE,
        socket=provider_stream,
        operation=Operation(
            summary="WebSocket for providers: subscribe, take requests, send completions",
            answers={101: ("JSON messages in text frames, each one message or an array of them", None)},
        ),
    ),
    Route(
        method="GET",
        template="/pipeline/events",
        access=Access.READ,
        socket=event_stream,
        operation=Operation(
            summary="WebSocket that sends facts as they happen",
            query={
                "executionId": "only those of this execution",
                "pipeline": "only those of this pipeline",
                "after": "sequence number to go on from; absent: from the beginning of the journal; now: from its end,"
                " and the first message then is {type: FeedStarted, seq}",
            },
            answers={101: ("JSON messages in text frames, each one fact or an array of them", None)},
        ),
    ),
)
