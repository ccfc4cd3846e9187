"""What a Kafka step and the configuration say: topics, keys, headers, and settings of the client library."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import define, field, frozen

from tpfd.core.records import InteractionRecord
from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.model import Pipeline, Step
from tpfd.pipeline.names import did_you_mean

KAFKA = "kafka"
PROPERTIES = "$.await.kafka.properties"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_KEYS = {"request": ("topic", "key"), "dispatch": ("topic", "key"), "response": ("topic",), "consumer": ("group",)}
_TOP_KEYS = (*_KEYS, "headers")
_RECORD_KEYS = ("interactionId", "correlationId")
_OUR_HEADERS = ("x-tpf-interaction-id", "x-tpf-correlation-id", "x-tpf-tenant-id", "idempotency-key", "content-type")

_OURS = frozenset(
    {"bootstrap.servers", "client.id", "group.id", "group.instance.id", "enable.auto.commit", "logger", "log_level"}
    | {"enable.auto.offset.store", "delivery.report.only.error", "error_cb", "stats_cb", "on_commit"}
)
"""Properties on which the promises rest, or that stand in keys of their own."""


@frozen(kw_only=True)
class KafkaStep:
    """One await step over Kafka.

    Attributes:
        key: what the records are keyed by: ``interactionId`` or ``correlationId``.
        group: consumer group that reads the answers; None: the usual one.
        headers: the pipeline's own.
    """

    step_id: str
    request_topic: str
    key: str
    response_topic: str
    group: str | None
    headers: tuple[tuple[str, str], ...]

    def record_key(self, record: InteractionRecord) -> bytes:
        """Key of a request: requests with the same key stay in order."""
        name = record.interaction_id if self.key == "interactionId" else record.correlation_id
        return name.encode()

    def record_headers(self, record: InteractionRecord) -> list[tuple[str, str | bytes | None]]:
        """Headers of a request."""
        ours = (record.interaction_id, record.correlation_id, record.tenant_id, record.idempotency_key)
        values = (*ours, "application/json")
        return [
            *((name, value.encode()) for name, value in self.headers),
            *((name, value.encode()) for name, value in zip(_OUR_HEADERS, values, strict=True)),
        ]


def kafka_steps(pipeline: Pipeline) -> list[Step]:
    """The await steps that ask over Kafka."""
    return [step for step in pipeline.steps if step.await_spec is not None and step.await_spec.transport == KAFKA]


def read_kafka_steps(pipeline: Pipeline) -> dict[int, KafkaStep]:
    """The settings of a pipeline's Kafka steps, by step index.

    Raises:
        ConfigError: every setting that cannot be used.
    """
    problems: list[Problem] = []
    found: dict[int, KafkaStep] = {}
    for step in kafka_steps(pipeline):
        assert step.await_spec is not None
        reader = _Reader(f"$.steps[{step.index}].await.transport", step.await_spec.settings)
        found[step.index] = reader.step(step.step_id)
        problems.extend(reader.problems)
    if problems:
        raise ConfigError(problems)
    return found


@define
class _Reader:
    """Reads the settings of one step, noting every problem."""

    path: str
    settings: Mapping[str, object]
    problems: list[Problem] = field(factory=list)

    def step(self, step_id: str) -> KafkaStep:
        self._check_keys(self.path, self.settings, _TOP_KEYS)
        # The framework takes these in `request` or in `dispatch`.
        place = "dispatch" if "request" not in self.settings and "dispatch" in self.settings else "request"
        topic = self._topic(place, "that requests go to")
        key = self._text(place, "key") or "interactionId"
        if key not in _RECORD_KEYS:
            hint = did_you_mean(key, _RECORD_KEYS)
            self._problem(f"{place}.key", f"{key!r} is not what a record can be keyed by{hint}")
        return KafkaStep(
            step_id=step_id,
            request_topic=topic,
            key=key,
            response_topic=self._topic("response", "that answers come from"),
            group=self._text("consumer", "group"),
            headers=tuple(self._headers()),
        )

    def _topic(self, place: str, purpose: str) -> str:
        known_count = len(self.problems)
        topic = self._text(place, "topic")
        if topic is None and len(self.problems) == known_count:
            self._problem(f"{place}.topic", f"is missing: a Kafka step needs the topic {purpose}")
        elif topic is not None and not _TOPIC.fullmatch(topic):
            self._problem(f"{place}.topic", f"{topic!r} is not a topic: letters, digits, '.', '_' and '-', at most 249")
        return topic or ""

    def _text(self, place: str, name: str) -> str | None:
        value = self._section(place).get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self._problem(f"{place}.{name}", "text is needed here")
            return None
        return value.strip()

    def _headers(self) -> list[tuple[str, str]]:
        value = self.settings.get("headers")
        if value is None:
            return []
        if not isinstance(value, dict):
            self._problem("headers", "a mapping of header names to texts is needed here")
            return []
        for name, text in value.items():
            if not isinstance(name, str) or not name or not isinstance(text, str):
                self._problem(f"headers.{name}", "is not a header: a name and a text are needed")
            elif name.lower() in _OUR_HEADERS:
                self._problem(f"headers.{name}", "is set by tpfd itself; take it out")
        return [(str(name), str(text)) for name, text in value.items()]

    def _section(self, name: str) -> Mapping[str, object]:
        value = self.settings.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            problem = Problem(f"{self.path}.{name}", "a mapping is needed here")
            if problem not in self.problems:
                self.problems.append(problem)
            return {}
        known = _KEYS[name]
        self._check_keys(f"{self.path}.{name}", value, known)
        return value

    def _check_keys(self, path: str, values: Mapping[str, object], known: tuple[str, ...]) -> None:
        for key in values:
            problem = Problem(f"{path}.{key}", f"unknown key {key!r}{did_you_mean(key, known)}")
            if key not in known and problem not in self.problems:
                self.problems.append(problem)

    def _problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(f"{self.path}.{path}", message))


@frozen(kw_only=True)
class KafkaSettings:
    """How to reach the brokers.

    Attributes:
        properties: more settings as the client library names them; with ``producer.`` or ``consumer.`` before the name
            for one side only.
    """

    bootstrap: str
    client_id: str
    properties: Mapping[str, str] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        ours = sorted(name for name in self.properties if name.split(".", 1)[-1] in _OURS or name in _OURS)
        if ours:
            raise ConfigError([Problem(f"{PROPERTIES}.{name}", "is set by tpfd itself; take it out") for name in ours])

    def of(self, side: str) -> dict[str, str]:
        """The properties of the ``producer`` or the ``consumer``, without ours."""
        other = "consumer." if side == "producer" else "producer."
        mine = {name: value for name, value in self.properties.items() if not name.startswith(other)}
        return {name.removeprefix(f"{side}."): value for name, value in mine.items()}
