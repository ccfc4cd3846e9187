"""Loads pipelines from where the configuration names them and makes them ready to run."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from tpfd import examples
from tpfd.config.model import Config
from tpfd.config.startup import PipelineNeeds
from tpfd.daemon.webhooks import allow_list, targets
from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.contract import bind_functions, bind_types
from tpfd.pipeline.loader import load_pipeline
from tpfd.pipeline.model import Correlation, Pipeline
from tpfd.pipeline.routing import routes
from tpfd.program import Program, StepDefaults, compile_program
from tpfd.transports.kafka_settings import kafka_steps, read_kafka_steps
from tpfd.transports.sqs_settings import read_sqs_steps
from tpfd.transports.webhook_target import webhook_steps

EXAMPLE = "example:"


def load_programs(config: Config, environ: Mapping[str, str]) -> dict[str, Program]:
    """All pipelines that the configuration names, by id.

    Raises:
        ConfigError: every problem of every pipeline, each with its file.
    """
    allowed = allow_list(config)
    programs: dict[str, Program] = {}
    problems: list[Problem] = []
    for place, name in enumerate(config.pipelines):
        try:
            program = _program(name, config, environ)
            targets(config, program.pipeline, allowed)
            read_kafka_steps(program.pipeline)
            read_sqs_steps(program.pipeline)
        except ConfigError as error:
            problems.extend(Problem(f"{name}: {problem.path}", problem.message) for problem in error.problems)
            continue
        if program.pipeline_id in programs:
            problems.append(Problem(f"$.pipelines[{place}]", f"pipeline {program.pipeline_id} is loaded twice"))
        programs[program.pipeline_id] = program
    if problems:
        raise ConfigError(problems)
    return programs


def read_pipeline(name: str) -> tuple[str, str]:
    """Text and origin of a pipeline: a path, or ``example:<name>``.

    Raises:
        ConfigError: there is no such example, or the file cannot be read.
    """
    if name.startswith(EXAMPLE):
        return examples.pipeline_text(name.removeprefix(EXAMPLE)), name
    try:
        return Path(name).read_text(encoding="utf-8"), name
    except OSError as error:
        raise ConfigError([Problem("$", f"cannot read {name}: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem("$", f"{name} is not UTF-8 text: {error.reason}")]) from error


def import_object(name: str) -> object:
    """The object that ``module:name`` stands for.

    Raises:
        ConfigError: the module or the name is not there.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise ConfigError([Problem("$", f"{name!r}: write module:name")])
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError([Problem("$", f"cannot import {module_name}: {error}")]) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError([Problem("$", f"{module_name} has no {attribute}")]) from None


def step_defaults(config: Config) -> StepDefaults:
    """What counts where a step does not say."""
    steps = config.steps
    return StepDefaults(
        retry_limit=steps.retry_limit,
        retry_wait_ms=steps.retry_wait_ms,
        max_backoff_ms=steps.max_backoff_ms,
        recover_on_failure=steps.recover_on_failure,
        max_concurrency=steps.max_concurrency,
        buffer_capacity=steps.backpressure_buffer_capacity,
        sequential=steps.parallelism == "SEQUENTIAL",
        budgets=config.await_.admission.enabled,
    )


def needs(programs: Mapping[str, Program]) -> PipelineNeeds:
    """What the pipelines ask of the configuration."""
    steps = [(program, step) for program in programs.values() for step in program.pipeline.steps]
    return PipelineNeeds(
        signed_token_steps=tuple(
            f"{program.pipeline_id}/{step.step_id}"
            for program, step in steps
            if step.await_spec is not None and step.await_spec.correlation is Correlation.SIGNED_RESUME_TOKEN
        ),
        recovering_steps=tuple(
            f"{program.pipeline_id}/{step.step_id}" for program, step in steps if program.recovers(step)
        ),
        webhook_steps=tuple(
            f"{program.pipeline_id}/{step.step_id}"
            for program in programs.values()
            for step in webhook_steps(program.pipeline)
        ),
        kafka_steps=tuple(
            f"{program.pipeline_id}/{step.step_id}"
            for program in programs.values()
            for step in kafka_steps(program.pipeline)
        ),
        sqs_steps=tuple(
            f"{program.pipeline_id}/{queues.step_id}"
            for program in programs.values()
            for queues in read_sqs_steps(program.pipeline).values()
        ),
    )


def _program(name: str, config: Config, environ: Mapping[str, str]) -> Program:
    text, origin = read_pipeline(name)
    pipeline = load_pipeline(text, origin, environ, config.bindings)
    if not name.startswith(EXAMPLE):
        folder = Path(name).absolute().parent
        pipeline = _anchored(pipeline, folder)
        # Its Python modules stand beside it, as a script's do.
        if os.fspath(folder) not in sys.path:
            sys.path.append(os.fspath(folder))
    pipeline = bind_types(pipeline, import_object)
    functions = bind_functions(pipeline, import_object)
    return compile_program(pipeline, functions, routes(pipeline), step_defaults(config))


def _anchored(pipeline: Pipeline, folder: Path) -> Pipeline:
    """Relative folders of a pipeline file count from the file, not from where the daemon was started."""
    sources = {
        name: evolve(source, root=os.fspath(folder / source.root)) if source.provider == "filesystem" else source
        for name, source in pipeline.sources.items()
    }
    publish = {
        name: evolve(target, root=os.fspath(folder / target.root)) if target.provider == "filesystem" else target
        for name, target in pipeline.publish.items()
    }
    return evolve(pipeline, sources=sources, publish=publish)
