"""The daemon about itself: health, metrics, the description of the interface, and the console."""

from __future__ import annotations

from tpfd.http.auth import Access
from tpfd.http.console import page
from tpfd.http.messages import JSON, Response, json_response
from tpfd.http.routing import Call, Operation, Route
from tpfd.metrics import CONTENT_TYPE


async def live(_call: Call) -> Response:
    """The event loop turns: that is all that being alive means."""
    return json_response(200, {"status": "UP"})


async def ready(call: Call) -> Response:
    """Whether new work can be taken; 503 with the reasons otherwise."""
    if call.edge.drain.begun:
        return json_response(503, {"status": "DOWN", "reasons": ["draining"]})
    readiness = call.service.readiness()
    body = {"status": "UP" if readiness.ready else "DOWN", "reasons": list(readiness.reasons)}
    return json_response(200 if readiness.ready else 503, body)


async def metrics(call: Call) -> Response:
    """Prometheus' text format."""
    return Response(200, call.edge.metrics.exposition(), CONTENT_TYPE)


async def openapi(call: Call) -> Response:
    """The OpenAPI document."""
    return Response(200, call.edge.openapi, JSON)


async def overview(call: Call) -> Response:
    """Which pipelines are loaded, with their steps; the console offers them."""
    return json_response(200, dict(call.service.overview()))


async def console(_call: Call) -> Response:
    """The web page; what it shows it asks for with the person's own token."""
    return page.RESPONSE


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        template="/q/health/live",
        access=Access.PUBLIC,
        handler=live,
        operation=Operation(summary="Whether the process works", answers={200: ("it does", "Health")}),
    ),
    Route(
        method="GET",
        template="/q/health/ready",
        access=Access.PUBLIC,
        handler=ready,
        operation=Operation(
            summary="Whether new work is taken", answers={200: ("yes", "Health"), 503: ("no, and why", "Health")}
        ),
    ),
    Route(
        method="GET",
        template="/q/metrics",
        access=Access.READ,
        handler=metrics,
        operation=Operation(summary="Metrics in Prometheus' text format", answers={200: ("the metrics", None)}),
    ),
    Route(
        method="GET",
        template="/openapi.json",
        access=Access.PUBLIC,
        handler=openapi,
        operation=Operation(summary="This document", answers={200: ("OpenAPI 3.1", None)}),
    ),
    Route(
        method="GET",
        template="/pipeline/overview",
        access=Access.READ,
        handler=overview,
        operation=Operation(summary="Show the loaded pipelines", answers={200: ("pipelines and their steps", None)}),
    ),
    Route(
        method="GET",
        template="/",
        access=Access.PUBLIC,
        handler=console,
        operation=Operation(summary="The console, a web page", answers={200: ("HTML", None)}),
    ),
)
