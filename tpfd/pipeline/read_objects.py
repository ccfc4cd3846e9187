"""Reads `sources`, `publish`, `input`, `output`, `connectors` and `search`: what connects a pipeline to objects."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tpfd.pipeline.declarations import RecordDecl, TypeDecl, UnionDecl
from tpfd.pipeline.model import (
    AfterIngest,
    Connector,
    InputBinding,
    ObjectFormat,
    ObjectSource,
    ObjectTarget,
    OnExisting,
    OutputBinding,
    PayloadMode,
    Step,
)
from tpfd.pipeline.names import did_you_mean
from tpfd.pipeline.section import Section, is_python_reference
from tpfd.pipeline.type_checks import alias_target

PROVIDERS = ("filesystem", "s3", "stdio")
KEY_PLACEHOLDERS = ("groupKey", "executionId", "pipelineId", "date", "inputName")
MAX_SEARCH_KEYS = 8
IDENTITY_FIELDS = ("provider", "container", "key", "etag", "version", "size", "lastModified")

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_FORMATS: Mapping[str, ObjectFormat] = {
    "text/csv": ObjectFormat.CSV,
    "application/json": ObjectFormat.JSON,
    "application/x-ndjson": ObjectFormat.JSONL,
    "application/jsonl": ObjectFormat.JSONL,
}
_CONTENT_TYPES: Mapping[ObjectFormat, str] = {
    ObjectFormat.CSV: "text/csv",
    ObjectFormat.JSON: "application/json",
    ObjectFormat.JSONL: "application/x-ndjson",
}


def read_sources(root: Section) -> dict[str, ObjectSource]:
    return {name: _read_source(section) for name, section in _entries(root, "sources")}


def read_publish(root: Section) -> dict[str, ObjectTarget]:
    return {name: _read_target(section) for name, section in _entries(root, "publish")}


def read_connectors(root: Section) -> dict[str, Connector]:
    found: dict[str, Connector] = {}
    for name, section in _entries(root, "connectors"):
        section.check_keys(frozenset({"provider", "version", "config"}), frozenset())
        found[name] = Connector(
            provider=section.required_text("provider") or "",
            version=section.count("version", minimum=1),
            config=section.free("config"),
        )
    return found


def _entries(root: Section, key: str) -> list[tuple[str, Section]]:
    found: list[tuple[str, Section]] = []
    root.sections(key, lambda name, section: found.append((name, section)))
    return found


def _read_location(section: Section) -> tuple[str, str, str, Mapping[str, object]]:
    """Provider, root, prefix and what only the provider knows."""
    if section.text("kind") not in (None, "object"):
        section.problem("the one kind is 'object'", "kind")
    provider = section.required_text("provider") or ""
    if provider and provider not in PROVIDERS:
        section.problem(f"{provider!r} is not a provider{did_you_mean(provider, PROVIDERS)}", "provider")
    location = section.section("location", None)
    place = {"filesystem": "root", "s3": "bucket"}.get(provider)
    root = "" if place is None else location.required_text(place) or ""
    settings = location.without("root", "bucket", "prefix")
    return provider, root, location.blank_text("prefix"), settings


def _read_source(section: Section) -> ObjectSource:
    section.check_keys(
        frozenset({"kind", "provider", "location", "filter", "poll", "identity", "payload", "after"}),
        frozenset({"binding"}),
    )
    provider, root, prefix, settings = _read_location(section)
    globs = section.section("filter", ("include", "exclude"))
    poll = section.section("poll", ("enabled", "interval", "batchSize"))
    identity = section.section("identity", ("fields",))
    payload = section.section("payload", ("mode", "maxBytes", "charset"), ("refField",))
    after, move_to = _read_after(section)
    fields = identity.texts("fields")
    for index, one in enumerate(fields):
        if one not in IDENTITY_FIELDS:
            message = f"{one!r} tells nothing about an object{did_you_mean(one, IDENTITY_FIELDS)}"
            identity.report.problem(f"{identity.at('fields')}[{index}]", message)
    payload.count("maxBytes")
    payload.text("charset")
    enabled = poll.flag("enabled")
    return ObjectSource(
        provider=provider,
        root=root,
        prefix=prefix,
        include=globs.texts("include"),
        exclude=globs.texts("exclude"),
        poll_enabled=True if enabled is None else enabled,
        poll_interval_ms=poll.duration_ms("interval") or 10_000,
        batch_size=poll.count("batchSize", minimum=1) or 50,
        identity_fields=fields or ("provider", "container", "key", "etag"),
        payload_mode=payload.choice("mode", PayloadMode) or PayloadMode.REFERENCE,
        after=after,
        move_to=move_to,
        settings={**settings, **payload.without("mode", "refField")},
    )


def _read_after(section: Section) -> tuple[AfterIngest, str | None]:
    """``after: keep``, ``after: delete`` or ``after: {move: folder}``."""
    if isinstance(section.values.get("after"), dict):
        move_to = section.section("after", ("move",)).required_text("move")
        return AfterIngest.MOVE, move_to
    after = section.choice("after", AfterIngest) or AfterIngest.KEEP
    if after is AfterIngest.MOVE:
        section.problem("say where to: 'after: {move: done}'", "after")
    return after, None


def _read_target(section: Section) -> ObjectTarget:
    section.check_keys(
        frozenset({"kind", "provider", "location", "naming", "payload", "grouping", "onExisting"}),
        frozenset({"binding"}),
    )
    provider, root, prefix, settings = _read_location(section)
    naming = section.section("naming", ("keyTemplate",))
    payload = section.section("payload", ("contentType", "format"))
    grouping = section.section("grouping", ("maxOpenGroups",))
    template = naming.text("keyTemplate")
    for placeholder in _PLACEHOLDER.findall(template or ""):
        if placeholder not in KEY_PLACEHOLDERS:
            hint = did_you_mean(placeholder, KEY_PLACEHOLDERS)
            naming.problem(f"{{{placeholder}}} stands for nothing{hint}", "keyTemplate")
    if template is not None and set("{}") & set(_PLACEHOLDER.sub("", template)):
        naming.problem("a brace is not closed or not opened", "keyTemplate")
    content_type = payload.text("contentType")
    written = payload.choice("format", ObjectFormat)
    object_format = written or _FORMATS.get((content_type or "").partition(";")[0].strip(), ObjectFormat.JSONL)
    return ObjectTarget(
        provider=provider,
        root=root,
        prefix=prefix,
        key_template=template or "{executionId}",
        content_type=content_type or _CONTENT_TYPES[object_format],
        format=object_format,
        max_open_groups=grouping.count("maxOpenGroups", minimum=1) or 1,
        on_existing=section.choice("onExisting", OnExisting) or OnExisting.FAIL,
        settings=settings,
    )


def read_input(
    root: Section, declared: Mapping[str, TypeDecl], sources: Mapping[str, ObjectSource], steps: tuple[Step, ...]
) -> InputBinding | None:
    """The binding of a source to the first step."""
    if "input" not in root:
        return None
    section = root.section("input", ("from", "object", "emits", "selection", "subscription"))
    if "subscription" in section:
        section.problem(
            "pipelines are not chained by subscription in this runtime; submit to it, or ingest objects", "subscription"
        )
        return None
    if "object" in section:  # the older spelling: input.object.{source | from, emits}
        section = section.section("object", ("source", "from", "emits", "selection"))
    key = "source" if "source" in section else "from"
    source, type_name, mapper = _read_binding(section, key, "emits", declared, sources, "sources")
    wanted = steps[0].input_type if steps else None
    if source is None or type_name is None or wanted is None:
        return None
    if alias_target(declared, type_name) != alias_target(declared, wanted):
        section.problem(f"emits {type_name}, but the first step takes {wanted}", "emits")
    return InputBinding(source=source, type_name=type_name, mapper=mapper, selection=section.free("selection"))


def read_output(
    root: Section, declared: Mapping[str, TypeDecl], publish: Mapping[str, ObjectTarget], steps: tuple[Step, ...]
) -> OutputBinding | None:
    """The binding of the last step to a target."""
    if "output" not in root:
        return None
    section = root.section("output", ("to", "consumes", "checkpoint"))
    if "checkpoint" in section:
        section.problem(
            "pipelines are not chained by checkpoint in this runtime; publish objects instead", "checkpoint"
        )
        return None
    target, type_name, mapper = _read_binding(section, "to", "consumes", declared, publish, "publish")
    wanted = steps[-1].output_type if steps else None
    if target is None or type_name is None or wanted is None:
        return None
    if alias_target(declared, type_name) != alias_target(declared, wanted):
        section.problem(f"consumes {type_name}, but the last step gives {wanted}", "consumes")
    return OutputBinding(target=target, type_name=type_name, mapper=mapper)


def _read_binding(
    section: Section,
    name_key: str,
    value_key: str,
    declared: Mapping[str, TypeDecl],
    known: Mapping[str, object],
    where: str,
) -> tuple[str | None, str | None, str | None]:
    """Name, type and mapper of an input or output binding."""
    name = section.required_text(name_key)
    if name is not None and name not in known:
        section.problem(f"{name!r} is not in {where}{did_you_mean(name, known)}", name_key)
    inner = section.section(value_key, ("type", "typeName", "mapper", "python"))
    java_class = inner.text("type")
    type_name = inner.text("typeName") or (java_class or "").rpartition(".")[2] or None
    if java_class is not None and java_class != type_name:
        inner.ignore("type")
    if type_name is None:
        inner.problem("'typeName' is missing: name one of the declared types")
    elif alias_target(declared, type_name) not in declared:
        inner.problem(f"type {type_name!r} is not declared{did_you_mean(type_name, declared)}", "typeName")
        type_name = None
    mapper = inner.python("python")
    java_mapper = inner.text("mapper")
    if java_mapper is not None and is_python_reference(java_mapper):
        mapper = mapper or java_mapper
    else:
        inner.ignore("mapper")
    return name, type_name, mapper


def read_search(root: Section, declared: Mapping[str, TypeDecl], steps: tuple[Step, ...]) -> dict[str, str]:
    """Search names and the input fields they look into."""
    section = root.section("search", None)
    fields = _input_fields(declared, steps)
    found: dict[str, str] = {}
    for name in section.values:
        field_name = section.text(name)
        if field_name is None:
            continue
        if fields is not None and field_name not in fields:
            section.problem(f"the input has no field {field_name!r}{did_you_mean(field_name, fields)}", name)
        found[name] = field_name
    if len(found) > MAX_SEARCH_KEYS:
        section.problem(f"at most {MAX_SEARCH_KEYS} search keys, not {len(found)}")
    return found


def _input_fields(declared: Mapping[str, TypeDecl], steps: tuple[Step, ...]) -> set[str] | None:
    """Single-valued fields that every possible input has; None: not known, because the first step is broken."""
    if not steps:
        return None
    declaration = declared.get(alias_target(declared, steps[0].input_type))
    names = list(declaration.variants.values()) if isinstance(declaration, UnionDecl) else [steps[0].input_type]
    records = [declared.get(alias_target(declared, name)) for name in names]
    per_record = [
        {
            one.name
            for one in record.fields
            if not one.repeated and not _is(declared, one.type_name, (RecordDecl, UnionDecl))
        }
        for record in records
        if isinstance(record, RecordDecl)
    ]
    return set.intersection(*per_record) if per_record else None


def _is(declared: Mapping[str, TypeDecl], name: str, kinds: tuple[type, ...]) -> bool:
    return isinstance(declared.get(alias_target(declared, name)), kinds)
