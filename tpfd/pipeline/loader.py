"""Loads a `pipeline.yaml`: text in, a checked `Pipeline` out, or every problem at once.

The order is fixed by what needs what: text, environment, types, steps, then what refers to them. Routing is followed
only through types that hold together.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpfd.errors import ConfigError
from tpfd.pipeline.contract_version import contract_version
from tpfd.pipeline.declarations import RecordDecl, TypeDecl
from tpfd.pipeline.model import Pipeline, Step
from tpfd.pipeline.names import did_you_mean, kebab
from tpfd.pipeline.read_objects import (
    read_connectors,
    read_input,
    read_output,
    read_publish,
    read_search,
    read_sources,
)
from tpfd.pipeline.read_steps import read_steps
from tpfd.pipeline.read_types import read_types
from tpfd.pipeline.routing import check_routes
from tpfd.pipeline.section import Report, Section
from tpfd.pipeline.type_checks import alias_target
from tpfd.pipeline.types import TypeTable
from tpfd.pipeline.yaml_text import read_located, substitute

VERSIONS = (2, 3)

_KEYS = (
    "version", "appName", "transport", "platform", "types", "messages", "unions", "contract", "connectors", "sources",
    "input", "publish", "output", "search", "python", "steps",
)  # fmt: skip
_JAVA = (
    "basePackage", "runtimeLayout", "java", "aspects", "materialization", "representations", "queries", "pipelines",
    "blockBindings", "generateMcp",
)  # fmt: skip
_TRANSPORTS = ("REST", "GRPC", "LOCAL")
_PLATFORMS = ("COMPUTE", "STANDARD")
_PACKAGED_PLATFORMS = ("FUNCTION", "LAMBDA")


def load_pipeline(
    text: str, origin: str, environ: Mapping[str, str], bindings: Mapping[str, str] | None = None
) -> Pipeline:
    """Load one pipeline definition.

    Args:
        text: the file's content.
        origin: the file's name, for messages.
        environ: what ``${NAME}`` is taken from.
        bindings: step name -> ``module:function`` from outside the file; they win over `python:` in it.

    Returns:
        The pipeline. Its functions and the user's classes are not imported yet: see `tpfd.pipeline.contract`.

    Raises:
        ConfigError: every problem of the file, each with its path and line.
    """
    located = read_located(text, origin)
    report = Report(origin, located.lines)
    try:
        tree = substitute(located.tree, environ)
    except ConfigError as error:
        for problem in error.problems:
            report.problem(problem.path, problem.message)
        raise ConfigError(report.problems) from error
    root = report.root(tree, _KEYS, _JAVA)
    version = _read_version(root)
    app_name = _read_app_name(root)
    _read_platform(root)
    declared = read_types(root)
    types_hold = not report.problems
    steps, paths = read_steps(root, declared, bindings or {})
    steps_hold = types_hold and not report.problems
    python_names = _read_python_types(root, declared)
    sources, publish, connectors = read_sources(root), read_publish(root), read_connectors(root)
    _check_connectors(report, steps, connectors, paths)
    bound_input = read_input(root, declared, sources, steps)
    bound_output = read_output(root, declared, publish, steps)
    search = read_search(root, declared, steps)
    types = TypeTable(declared, python_names) if types_hold else TypeTable({})
    if steps_hold:
        check_routes(report, steps, types, paths)
    if report.problems or app_name is None:
        raise ConfigError(report.problems)
    return Pipeline(
        pipeline_id=kebab(app_name),
        app_name=app_name,
        version=version,
        contract_version=contract_version(declared, steps),
        types=types,
        steps=steps,
        sources=sources,
        publish=publish,
        connectors=connectors,
        input=bound_input,
        output=bound_output,
        search=search,
        unused_keys=tuple(report.unused),
    )


def _read_version(root: Section) -> int:
    if "version" not in root:
        root.problem("'version' is missing; write 'version: 3' (2 is read too, 1 is not)")
    version = root.count("version")
    if version is not None and version not in VERSIONS:
        root.problem(f"version {version} of the template language is not known; 2 and 3 are", "version")
    return version or VERSIONS[-1]


def _read_app_name(root: Section) -> str | None:
    app_name = root.required_text("appName")
    if app_name is not None and not kebab(app_name):
        root.problem(f"{app_name!r} has no letter or digit to make an id of", "appName")
    return app_name


def _read_platform(root: Section) -> None:
    transport = root.text("transport")
    if transport is not None and transport.upper() not in _TRANSPORTS:
        root.problem(f"{transport!r} is not a transport{did_you_mean(transport, _TRANSPORTS)}", "transport")
    root.ignore("transport")
    platform = root.text("platform")
    if platform is None:
        return
    if platform.upper() in _PACKAGED_PLATFORMS:
        message = f"platform {platform} is a way to package the Java runtime; leave it out, this daemon is COMPUTE"
        root.problem(message, "platform")
    elif platform.upper() not in _PLATFORMS:
        root.problem(f"{platform!r} is not a platform{did_you_mean(platform, _PLATFORMS)}", "platform")
    root.ignore("platform")


def _read_python_types(root: Section, declared: Mapping[str, TypeDecl]) -> dict[str, str]:
    section = root.section("python", ("types",)).section("types", None)
    records = [name for name, one in declared.items() if isinstance(one, RecordDecl)]
    found: dict[str, str] = {}
    for name in section.values:
        reference = section.python(name)
        if alias_target(declared, name) not in records:
            section.problem(f"{name!r} is not a record of this file{did_you_mean(name, records)}", name)
        elif reference is not None:
            found[alias_target(declared, name)] = reference
    return found


def _check_connectors(
    report: Report, steps: tuple[Step, ...], connectors: Mapping[str, object], paths: Mapping[int, str]
) -> None:
    for step in steps:
        using = step.command.using if step.command is not None else None
        if using is not None and using not in connectors:
            hint = did_you_mean(using, connectors)
            report.problem(f"{paths[step.index]}.using", f"connector {using!r} is not configured{hint}")
