"""Reads the `await` part of a step."""

from __future__ import annotations

from typing import cast

from tpfd.pipeline.model import AwaitSpec, Correlation, JsonData
from tpfd.pipeline.names import did_you_mean
from tpfd.pipeline.section import Section, as_written, is_python_reference

TRANSPORTS = ("interaction-api", "webhook", "websocket", "kafka", "sqs")
_KEYS = (
    "correlation", "transport", "timeout", "idempotency", "operationOutput", "completion", "dispatch", "onTimeout",
    "assignee", "group", "remindAfter", "escalateTo", "escalateAfter",
)  # fmt: skip
_JAVA = ("callback",)
_NO_DEADLINE_MS = 0


def read_await(section: Section, step_timeout_ms: int | None) -> AwaitSpec:
    """How the step waits.

    Args:
        section: the `await` mapping.
        step_timeout_ms: `timeout` of the step itself; None: it stands in the `await` mapping.

    Returns:
        The settings; where something is wrong, a default, and the report has it.
    """
    section.check_keys(frozenset(_KEYS), frozenset(_JAVA))
    transport = section.section("transport", None)
    completion = section.section("completion", ("type", "projector"))
    timeout_ms = section.duration_ms("timeout") or step_timeout_ms
    if timeout_ms is None and "timeout" not in section:
        section.problem("an await needs a timeout, as 'timeout: PT30M': nothing waits for ever")
    remind_after_ms = _within(section, "remindAfter", timeout_ms)
    escalate_after_ms = _within(section, "escalateAfter", timeout_ms)
    escalate_to = section.text("escalateTo")
    if (escalate_to is None) != (escalate_after_ms is None):
        section.problem("escalateTo (whom) and escalateAfter (when) belong together", "escalateTo")
    projector = completion.text("projector")
    if projector is not None and not is_python_reference(projector):
        completion.ignore("projector")  # a Java class
        projector = None
    completion_type = completion.text("type")
    return AwaitSpec(
        transport=_read_transport(transport),
        settings={**transport.without("type"), **_dispatch(section)},
        correlation=_read_correlation(section),
        timeout_ms=timeout_ms or _NO_DEADLINE_MS,
        assignee=section.text("assignee"),
        group=section.text("group"),
        remind_after_ms=remind_after_ms,
        escalate_to=escalate_to,
        escalate_after_ms=escalate_after_ms,
        on_timeout=_read_on_timeout(section),
        completion_type=None if completion_type is None else completion_type.rpartition(".")[2],
        projector=projector,
    )


def _read_transport(transport: Section) -> str:
    text = transport.required_text("type")
    if text is None:
        return ""
    if text not in TRANSPORTS:
        transport.problem(f"{text!r} is not a transport{did_you_mean(text, TRANSPORTS)}", "type")
    return text


def _dispatch(section: Section) -> dict[str, object]:
    """`dispatch` may stand beside the transport or in it; it is one of the transport's settings."""
    return {"dispatch": as_written(section.values["dispatch"])} if "dispatch" in section else {}


def _read_correlation(section: Section) -> Correlation:
    correlation = section.section("correlation", ("strategy",))
    return correlation.choice("strategy", Correlation) or Correlation.INTERACTION_ID


def _read_on_timeout(section: Section) -> JsonData:
    on_timeout = section.section("onTimeout", ("complete-with", "completeWith"))
    written = on_timeout.without()
    found = written.get("complete-with", written.get("completeWith"))
    if "onTimeout" in section and found is None:
        on_timeout.problem("write the value that completes it, as 'complete-with: {approved: {...}}'")
    return cast("JsonData", found)  # a YAML tree holds what JSON does, and Decimal for a number with a point


def _within(section: Section, key: str, timeout_ms: int | None) -> int | None:
    """A time that must come before the deadline."""
    found = section.duration_ms(key)
    if found is not None and timeout_ms is not None and found >= timeout_ms:
        section.problem("must be shorter than the timeout, else it never comes", key)
    return found
