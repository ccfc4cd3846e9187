"""Reads `steps`.

An authored step with `await.operationOutput` (the newest form of the template language: a step whose result is
completed later) is two steps here: the function that gives the request, and the await that sends it.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from tpfd.pipeline.declarations import RecordDecl, TypeDecl, UnionDecl
from tpfd.pipeline.model import Cardinality, CommandSpec, DuplicatePolicy, Parallelism, RetrySpec, Step, StepKind
from tpfd.pipeline.names import did_you_mean, kebab, service_names
from tpfd.pipeline.read_awaits import read_await
from tpfd.pipeline.read_types import inline_record
from tpfd.pipeline.section import Section, is_python_reference
from tpfd.pipeline.type_checks import alias_target

_STEP_KEYS = (
    "name", "kind", "cardinality", "input", "output", "inputTypeName", "outputTypeName", "inputFields", "outputFields",
    "accepts", "terminal", "timeout", "idempotencyKeyFields", "idempotency", "await", "command", "operation", "using",
    "commandIdGenerator", "duplicatePolicy", "config", "parallelism", "retry", "maxConcurrency",
    "backpressureBufferCapacity", "recoverOnFailure", "python", "inline", "process",
)  # fmt: skip
_STEP_JAVA = (
    "service", "operator", "delegate", "java", "inboundMapper", "outboundMapper", "operatorMapper", "externalMapper",
    "mapperFallback", "runOnVirtualThreads", "execution", "id", "flowRole", "flowBoundaryRationale", "batchSize",
    "batchTimeoutMs", "parallel", "generateMcp", "operationVersion", "policy",
)  # fmt: skip
_NOT_HERE = {
    "pipeline": "nested pipelines are not supported by this runtime; write the inner steps out",
    "query": "query steps are not supported by this runtime; make it a service step with a Python function",
    "paging": "paging is not supported by this runtime",
    "callables": "callables are not supported by this runtime",
}
_KINDS: Mapping[str, StepKind] = dict.fromkeys(("internal", "delegated", "remote"), StepKind.SERVICE)
_CARDINALITIES: Mapping[str, Cardinality] = {
    "EXPANSION": Cardinality.ONE_TO_MANY,
    "REDUCTION": Cardinality.MANY_TO_ONE,
    "COLLAPSE": Cardinality.MANY_TO_ONE,
}
_ROUTABLE = (RecordDecl, UnionDecl)


def read_steps(
    root: Section, declared: dict[str, TypeDecl], bindings: Mapping[str, str]
) -> tuple[tuple[Step, ...], dict[int, str]]:
    """Every step, in order.

    Args:
        root: the file.
        declared: the types; records declared in place by a step are added.
        bindings: step name -> ``module:function``, stronger than `python:` in the file.

    Returns:
        The steps, and the path of each in the file by its index. A step that cannot be read is left out; the report
        says so.
    """
    contract = root.section("contract", ("input", "output"))
    previous = contract.text("input")
    steps: list[Step] = []
    paths: dict[int, str] = {}
    authored = root.items("steps")
    for path, value in authored:
        section = root.report.section(value, path, (*_STEP_KEYS, *_NOT_HERE), _STEP_JAVA)
        for step in _read_step(section, declared, previous):
            paths[len(steps)] = path
            steps.append(evolve(step, index=len(steps)))
            previous = step.output_type
    if not authored:
        root.problem("a pipeline has at least one step", "steps")
    _check_unique(root, steps)
    wanted = contract.text("output")
    if wanted is not None and steps and wanted != steps[-1].output_type:
        contract.problem(f"the last step gives {steps[-1].output_type}, not {wanted}", "output")
    return _bound(root, steps, bindings), paths


def _read_step(section: Section, declared: dict[str, TypeDecl], previous: str | None) -> list[Step]:
    for key, message in _NOT_HERE.items():
        if key in section:
            section.problem(message, key)
            return []
    name = section.required_text("name")
    kind = _read_kind(section)
    cardinality = section.choice("cardinality", Cardinality, _CARDINALITIES) or Cardinality.ONE_TO_ONE
    input_type = _read_type_name(section, declared, "input", previous)
    same = cardinality is Cardinality.SIDE_EFFECT and not ("output" in section or "outputTypeName" in section)
    output_type = input_type if same else _read_type_name(section, declared, "output", None)
    if name is None or kind is None or input_type is None or output_type is None:
        return []
    if cardinality is Cardinality.SIDE_EFFECT and output_type != input_type:
        section.problem(f"a SIDE_EFFECT step gives what it takes ({input_type}), not {output_type}", "output")
    step = Step(
        index=0,
        name=name,
        step_id=kebab(name),
        kind=kind,
        cardinality=cardinality,
        input_type=input_type,
        output_type=output_type,
        accepts=_read_accepts(section, declared, input_type),
        terminal=section.flag("terminal") or False,
        timeout_ms=section.duration_ms("timeout"),
        idempotency_fields=_read_idempotency(section, declared, input_type),
        parallelism=section.choice("parallelism", Parallelism),
        retry=_read_retry(section),
        max_concurrency=section.count("maxConcurrency", minimum=1),
        buffer_capacity=section.count("backpressureBufferCapacity", minimum=1),
        recover_on_failure=section.flag("recoverOnFailure"),
        python=section.python("python"),
        inline=section.flag("inline") or False,
        process=section.flag("process") or False,
    )
    if step.inline and step.process:
        section.problem("a step runs inline or in a process, not both", "process")
    if kind is StepKind.COMMAND:
        step = evolve(step, command=_read_command(section, cardinality))
    if "await" in section:
        return _with_await(section, declared, step)
    if kind is StepKind.AWAIT:
        section.problem("an await step needs 'await: {transport: {type: ...}, ...}'")
    return [step]


def _with_await(section: Section, declared: dict[str, TypeDecl], step: Step) -> list[Step]:
    """One await step, or the function before it and the await."""
    found = section.section("await", None)
    request = found.section("operationOutput", ("type",), ("java",))
    if step.kind is StepKind.AWAIT:
        if "operationOutput" in found:
            found.problem("operationOutput belongs to a step that is not itself of kind await", "operationOutput")
        if step.python is not None:
            section.problem("an await step calls no function; a projector stands in await.completion", "python")
        return [evolve(step, timeout_ms=None, await_spec=read_await(found, step.timeout_ms))]
    if "operationOutput" not in found:
        found.problem("write 'kind: await', or what the function gives: 'operationOutput: {type: ...}'")
        return []
    type_name = _checked_type(request, declared, "type", request.required_text("type"))
    if type_name is None:
        return []
    waiting = Step(
        index=0,
        name=f"Await {step.name}",
        step_id=kebab(f"Await {step.name}"),
        kind=StepKind.AWAIT,
        cardinality=Cardinality.ONE_TO_ONE,
        input_type=type_name,
        output_type=step.output_type,
        idempotency_fields=_read_idempotency(found, declared, type_name),
        await_spec=read_await(found, None),
        parallelism=step.parallelism,
        max_concurrency=step.max_concurrency,
        other_names=frozenset({step.name, step.step_id}) | service_names(step.name),
        terminal=step.terminal,
    )
    return [evolve(step, output_type=type_name, terminal=False), waiting]


def _read_kind(section: Section) -> StepKind | None:
    text = section.text("kind")
    if text is None:
        return StepKind.SERVICE
    if text == "query":
        section.problem(_NOT_HERE["query"], "kind")
        return None
    return section.choice("kind", StepKind, _KINDS)


def _read_type_name(section: Section, declared: dict[str, TypeDecl], key: str, inherited: str | None) -> str | None:
    """The logical type of a side: ``<key>TypeName``, else ``<key>``, else what the step before gives.

    ``<key>`` may be a Java class in old files; its simple name counts then, if it is a declared type.
    """
    name_key = f"{key}TypeName"
    written = section.text(key)
    type_name = section.text(name_key)
    if type_name is not None:
        section.ignore(key)
        key = name_key
    elif written is not None:
        type_name = written.rpartition(".")[2]
    if f"{key.removesuffix('TypeName')}Fields" in section and type_name is not None:
        fields_key = f"{key.removesuffix('TypeName')}Fields"
        inline_record(section.report, declared, type_name, section.values[fields_key], section.at(fields_key))
    if type_name is None:
        if inherited is None or not isinstance(declared.get(alias_target(declared, inherited)), RecordDecl):
            section.problem(f"{key!r} is missing: name one of the declared types")
            return None
        return inherited
    return _checked_type(section, declared, key, type_name)


def _checked_type(section: Section, declared: dict[str, TypeDecl], key: str, type_name: str | None) -> str | None:
    if type_name is None:
        return None
    if type_name.startswith("<"):
        section.problem(f"{type_name} comes with a Java connector and is not known here; declare the type", key)
        return None
    declaration = declared.get(alias_target(declared, type_name))
    if declaration is None:
        section.problem(f"type {type_name!r} is not declared{did_you_mean(type_name, declared)}", key)
        return None
    if not isinstance(declaration, _ROUTABLE):
        section.problem(f"{type_name!r} is no record or union; what flows between steps is one of these", key)
        return None
    return type_name


def _read_accepts(section: Section, declared: Mapping[str, TypeDecl], input_type: str) -> tuple[str, ...]:
    declaration = declared[alias_target(declared, input_type)]
    possible = (
        {alias_target(declared, one) for one in declaration.variants.values()}
        if isinstance(declaration, UnionDecl)
        else {declaration.name}
    )
    found: list[str] = []
    for index, one in enumerate(section.texts("accepts")):
        target = alias_target(declared, one.rpartition(".")[2])
        if target in possible:
            found.append(target)
        else:
            path = f"{section.at('accepts')}[{index}]"
            section.report.problem(path, f"{one!r} is not a variant of {input_type}{did_you_mean(one, possible)}")
    return tuple(found)


def _read_idempotency(section: Section, declared: Mapping[str, TypeDecl], input_type: str) -> tuple[str, ...]:
    """Field names of the input, from `idempotencyKeyFields` or `idempotency.fields`."""
    inner = section.section("idempotency", ("fields",))
    here, key = (section, "idempotencyKeyFields") if "idempotencyKeyFields" in section else (inner, "fields")
    if "idempotencyKeyFields" in section and "fields" in inner:
        section.problem("idempotencyKeyFields and idempotency.fields say the same; write one", "idempotency")
    declaration = declared[alias_target(declared, input_type)]
    records = (
        [declared.get(alias_target(declared, one)) for one in declaration.variants.values()]
        if isinstance(declaration, UnionDecl)
        else [declaration]
    )
    names = here.texts(key)
    for index, name in enumerate(names):
        for record in records:
            if isinstance(record, RecordDecl) and name not in {one.name for one in record.fields}:
                known = [one.name for one in record.fields]
                message = f"{record.name} has no field {name!r}{did_you_mean(name, known)}"
                section.report.problem(f"{here.at(key)}[{index}]", message)
    return names


def _read_retry(section: Section) -> RetrySpec:
    retry = section.section("retry", ("limit", "wait", "maxBackoff"))
    return RetrySpec(
        limit=retry.count("limit"), wait_ms=retry.duration_ms("wait"), max_backoff_ms=retry.duration_ms("maxBackoff")
    )


def _read_command(section: Section, cardinality: Cardinality) -> CommandSpec:
    if cardinality is not Cardinality.ONE_TO_ONE:
        section.problem(f"a command step is ONE_TO_ONE, not {cardinality}", "cardinality")
    command, operation, using = section.text("command"), section.text("operation"), section.text("using")
    if (command is None) == (operation is None):
        section.problem("a command step has 'command', or 'operation' with 'using'; exactly one of them")
    if operation is not None and using is None:
        section.problem("'operation' needs 'using: <connector>'", "operation")
    generator = section.text("commandIdGenerator")
    if generator is not None and not is_python_reference(generator):
        section.ignore("commandIdGenerator")  # a Java class
        generator = None
    return CommandSpec(
        command=command,
        operation=operation,
        using=using,
        id_generator=generator,
        duplicate_policy=section.choice("duplicatePolicy", DuplicatePolicy) or DuplicatePolicy.RETURN_RECORDED,
        config=section.free("config"),
    )


def _check_unique(root: Section, steps: list[Step]) -> None:
    seen: set[str] = set()
    for step in steps:
        if not step.step_id:
            root.problem(f"step name {step.name!r} has no letter or digit", "steps")
        elif step.step_id in seen:
            root.problem(f"two steps have the id {step.step_id!r}; give each its own name", "steps")
        seen.add(step.step_id)


def _bound(root: Section, steps: list[Step], bindings: Mapping[str, str]) -> tuple[Step, ...]:
    """The steps with their functions (of an await: its projector) from `bindings`."""
    bound = list(steps)
    for name, reference in bindings.items():
        bindable = [step for step in bound if step.await_spec is None or step.await_spec.completion_type is not None]
        found = next((step for step in bindable if step.answers_to(name)), None)
        if found is None:
            known = did_you_mean(name, [step.step_id for step in bindable])
            root.report.problem("$.steps", f"bindings name the step {name!r}, which is not here{known}")
        elif not is_python_reference(reference):
            root.report.problem("$.steps", f"binding of {name!r}: {reference!r} is not module:function")
        elif found.await_spec is None:
            bound[found.index] = evolve(found, python=reference)
        else:
            bound[found.index] = evolve(found, await_spec=evolve(found.await_spec, projector=reference))
    return tuple(bound)
