"""Picks the concrete sources and targets that the pipelines name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import frozen

from tpfd.aws.calls import AwsCalls
from tpfd.aws.clients import make_client
from tpfd.blocking import Threads
from tpfd.clock import Clock
from tpfd.core.publication import OnExisting
from tpfd.errors import ConfigError, Problem
from tpfd.metrics import Metrics
from tpfd.objects.filesystem import FilesystemSource
from tpfd.objects.filesystem_target import FilesystemTarget
from tpfd.objects.formats import Encoder, make_encoder
from tpfd.objects.keys import template_problem
from tpfd.objects.mapping import ObjectReader
from tpfd.objects.protocol import AfterAction, AfterKind, ObjectSource, ObjectTarget
from tpfd.objects.publisher import ObjectPublisher
from tpfd.objects.s3_bucket import Bucket, ReadingClient
from tpfd.objects.s3_source import S3Source
from tpfd.objects.s3_target import S3Target
from tpfd.pipeline import model
from tpfd.program import Program

DISK_THREADS = 4
S3_THREADS = 16
"""Requests at a time, each at least a round trip."""
S3_READ_TIMEOUT_S = 30.0
"""Copying and completing large objects takes its time."""

_S3_SETTINGS = ("region", "endpoint")
_OTHER_SETTINGS = ("maxBytes", "charset", "formulaSafe")


@frozen(kw_only=True)
class Input:
    """Where a pipeline's objects come from.

    Attributes:
        name: of the `sources` entry.
        reader: makes the first step's input from an object.
        after: what happens to an object in the end.
        polled: False: objects come by submitting references to them only.
    """

    program: Program
    name: str
    source: ObjectSource
    reader: ObjectReader
    after: AfterAction
    polled: bool


def publishers(programs: Mapping[str, Program], clock: Clock, metrics: Metrics) -> dict[str, ObjectPublisher]:
    """A publisher for each pipeline that publishes its output.

    Raises:
        ConfigError: a target cannot be used.
    """
    found: dict[str, ObjectPublisher] = {}
    problems: list[Problem] = []
    for program in programs.values():
        output = program.pipeline.output
        if output is None:
            continue
        spec = program.pipeline.publish[output.target]
        path = f"{program.pipeline_id}: $.publish.{output.target}"
        if (fault := template_problem(spec.key_template)) or "{groupKey}" in spec.key_template:
            message = fault or "{groupKey} is not supported by this release: an execution has one output object"
            problems.append(Problem(f"{path}.naming.keyTemplate", message))
            continue
        if output.mapper is not None:
            problems.append(Problem(f"{path}.mapper", "an output mapper is not supported by this release"))
            continue
        try:
            target = _target(spec, path, metrics)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        found[program.pipeline_id] = ObjectPublisher(
            target=target,
            name=output.target,
            key_template=spec.key_template,
            on_existing=OnExisting(spec.on_existing),
            make_encoder=_encoders(program, spec.format, spec.settings),
            now_epoch_ms=clock.now_ms,
        )
    if problems:
        raise ConfigError(problems)
    return found


def inputs(programs: Mapping[str, Program], clock: Clock, metrics: Metrics, max_payload_bytes: int) -> list[Input]:
    """The object sources of all pipelines that have one.

    Raises:
        ConfigError: a source cannot be used.
    """
    found = []
    problems: list[Problem] = []
    for program in programs.values():
        binding = program.pipeline.input
        if binding is None:
            continue
        spec = program.pipeline.sources[binding.source]
        path = f"{program.pipeline_id}: $.sources.{binding.source}"
        if binding.mapper is not None:
            problems.append(Problem(f"{path}.mapper", "an input mapper is not supported by this release"))
            continue
        try:
            source = _source(spec, path, clock, metrics)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        record = program.pipeline.types.record(program.pipeline.input_type)
        kind = AfterKind(spec.after)
        found.append(
            Input(
                program=program,
                name=binding.source,
                source=source,
                reader=ObjectReader(
                    source, spec.payload_mode, [field.name for field in record.fields], max_payload_bytes
                ),
                after=AfterAction(kind=kind) if spec.move_to is None else AfterAction(kind=kind, folder=spec.move_to),
                polled=spec.poll_enabled,
            )
        )
    if problems:
        raise ConfigError(problems)
    return found


def _target(spec: model.ObjectTarget, path: str, metrics: Metrics) -> ObjectTarget:
    match spec.provider:
        case "filesystem":
            return FilesystemTarget(_folder(spec.root, spec.prefix), Threads(DISK_THREADS))
        case "s3":
            bucket = _bucket(spec, path, metrics)
            replaces = spec.on_existing is model.OnExisting.REPLACE
            return S3Target(bucket, content_type=spec.content_type, replaces=replaces)
    raise _unsupported(spec.provider, path)


def _source(spec: model.ObjectSource, path: str, clock: Clock, metrics: Metrics) -> ObjectSource:
    include = spec.include or ("*",)
    try:
        match spec.provider:
            case "filesystem":
                folder = _folder(spec.root, spec.prefix)
                if spec.poll_enabled and not folder.is_dir():
                    raise _problem(f"{path}.location.root", f"{folder.absolute()} is not a folder; create it")
                return FilesystemSource(
                    folder,
                    blocking=Threads(DISK_THREADS),
                    now_epoch_ms=clock.now_ms,
                    include=include,
                    exclude=spec.exclude,
                    identity_fields=spec.identity_fields,
                    settle_ms=min(1_000, 2 * spec.poll_interval_ms),
                )
            case "s3":
                bucket = _bucket(spec, path, metrics)
                return S3Source(bucket, include=include, exclude=spec.exclude, identity_fields=spec.identity_fields)
    except ValueError as error:
        raise _problem(f"{path}.identity.fields", str(error)) from error
    raise _unsupported(spec.provider, path)


def _bucket(spec: model.ObjectSource | model.ObjectTarget, path: str, metrics: Metrics) -> Bucket:
    """The bucket that a location names, with threads and connections of its own.

    Raises:
        ConfigError: a setting is not known, or the client cannot be made.
    """
    settings = {name: value for name, value in spec.settings.items() if name not in _OTHER_SETTINGS}
    problems = [
        Problem(f"{path}.location.{name}", "is not known; an S3 location has bucket, prefix, region and endpoint")
        for name in settings
        if name not in _S3_SETTINGS
    ]
    problems += [
        Problem(f"{path}.location.{name}", f"{value!r} is not text")
        for name, value in settings.items()
        if name in _S3_SETTINGS and not isinstance(value, str)
    ]
    region, endpoint = (str(settings.get(name, "")) for name in _S3_SETTINGS)
    if endpoint and not endpoint.startswith(("http://", "https://")):
        problems.append(Problem(f"{path}.location.endpoint", f"{endpoint!r} does not begin with http:// or https://"))
    if problems:
        raise ConfigError(problems)

    def connect() -> ReadingClient:
        return ReadingClient(
            make_client(
                "s3", region=region, endpoint=endpoint, connections=S3_THREADS, read_timeout_s=S3_READ_TIMEOUT_S
            )
        )

    threads = Threads(S3_THREADS)
    try:
        calls = AwsCalls("s3", connect, threads, observe=metrics.aws_requests.add)
    except ConfigError as error:
        raise ConfigError([Problem(f"{path}.location", problem.message) for problem in error.problems]) from error
    return Bucket(calls, threads, spec.root, spec.prefix)


def _encoders(
    program: Program, form: model.ObjectFormat, settings: Mapping[str, object]
) -> Callable[[], Encoder]:
    columns = [field.name for field in program.pipeline.types.record(program.pipeline.output_type).fields]
    formula_safe = settings.get("formulaSafe") is True
    return lambda: make_encoder(form, columns, formula_safe=formula_safe)


def _folder(root: str, prefix: str) -> Path:
    return Path(root) / prefix if prefix else Path(root)


def _unsupported(provider: str, path: str) -> ConfigError:
    return _problem(f"{path}.provider", f"{provider} is not supported by this release")


def _problem(path: str, message: str) -> ConfigError:
    return ConfigError([Problem(path, message)])
