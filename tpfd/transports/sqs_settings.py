"""What an await step over SQS says of its queues: the transport settings of the pipeline, read and checked."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.model import Pipeline
from tpfd.pipeline.names import did_you_mean

SQS = "sqs"
_QUEUES = ("request", "response")


@frozen(kw_only=True)
class SqsStep:
    """The queues of one await step.

    Attributes:
        request_url: where its requests go.
        response_url: where its answers come; None: where those of all steps come.
    """

    step_id: str
    request_url: str
    response_url: str | None


def read_sqs_steps(pipeline: Pipeline) -> dict[int, SqsStep]:
    """The await steps of a pipeline that go over SQS, by step index.

    Raises:
        ConfigError: every setting that cannot be used.
    """
    problems: list[Problem] = []
    found: dict[int, SqsStep] = {}
    for step in pipeline.steps:
        spec = step.await_spec
        if spec is None or spec.transport != SQS:
            continue
        path = f"$.steps[{step.index}].await.transport"
        _check_keys(path, spec.settings, _QUEUES, problems)
        request = _queue_url(path, spec.settings, "request", problems)
        if request is None and "request" not in spec.settings:
            problems.append(
                Problem(f"{path}.request.queueUrl", "is missing: the URL of the queue that its requests go to")
            )
        response = _queue_url(path, spec.settings, "response", problems)
        if request is not None:
            found[step.index] = SqsStep(step_id=step.step_id, request_url=request, response_url=response)
    if problems:
        raise ConfigError(problems)
    return found


def _queue_url(path: str, settings: Mapping[str, object], name: str, problems: list[Problem]) -> str | None:
    if (section := settings.get(name)) is None:
        return None
    path = f"{path}.{name}"
    if not isinstance(section, Mapping):
        problems.append(Problem(path, f"expected a mapping with queueUrl, found {section!r}"))
        return None
    _check_keys(path, section, ("queueUrl",), problems)
    url = section.get("queueUrl")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        problems.append(Problem(f"{path}.queueUrl", f"expected the URL of a queue, found {url!r}"))
        return None
    if url.partition("?")[0].endswith(".fifo"):
        problems.append(Problem(f"{path}.queueUrl", "is a FIFO queue; tpfd works with standard queues"))
        return None
    return url


def _check_keys(path: str, section: Mapping[str, object], known: tuple[str, ...], problems: list[Problem]) -> None:
    problems.extend(
        Problem(f"{path}.{key}", f"unknown key{did_you_mean(key, known)}") for key in section if key not in known
    )
