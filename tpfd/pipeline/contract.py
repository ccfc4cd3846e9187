"""Binds a pipeline to Python: the user's classes and functions, checked against the contract before anything runs.

Importing is I/O and therefore the caller's: a ``resolve`` function is passed in that turns ``module:name`` into the
object, or raises `ConfigError`.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types as python_types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from attrs import evolve, frozen

from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.model import Cardinality, Pipeline, Step, StepKind
from tpfd.pipeline.types import describe, same_annotation

Resolve = Callable[[str], object]

CONTEXT = "context"
_PROJECTOR_ARGUMENTS = 3
_ASYNC_STREAMS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
_STREAMS = (*_ASYNC_STREAMS, collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator)
_UNKNOWN = object()


class CallStyle(StrEnum):
    """How a step function is called."""

    ASYNC = "async"  # await call(value)
    THREAD = "thread"  # call(value) in a worker thread
    INLINE = "inline"  # call(value) in the event loop; must not block
    PROCESS = "process"  # call(value) in another process
    ASYNC_GENERATOR = "async generator"  # async for item in call(value)
    GENERATOR = "generator"  # for item in call(value), pulled in a worker thread


@frozen
class StepFunction:
    """A step's function and how to call it: ``call(value)``, or ``call(value, context=context)`` if it wants one."""

    call: Callable[..., Any]
    style: CallStyle
    wants_context: bool


def bind_types(pipeline: Pipeline, resolve: Resolve) -> Pipeline:
    """The pipeline with the user's own classes for its records.

    Raises:
        ConfigError: a class is missing or differs from its record; every difference.
    """
    return evolve(pipeline, types=pipeline.types.bind(resolve))


def bind_functions(pipeline: Pipeline, resolve: Resolve) -> Mapping[str, StepFunction]:
    """Every step's function, by step id. Of an await step it is the projector, if it has one.

    Args:
        pipeline: with its types bound, so that annotations can be compared.
        resolve: see the module.

    Raises:
        ConfigError: a step has no function, it cannot be imported, or it does not fit; every problem.
    """
    found: dict[str, StepFunction] = {}
    problems: list[Problem] = []
    for step in pipeline.steps:
        checker = _Checker(pipeline, step, problems)
        reference = step.python
        if step.await_spec is not None:
            reference = step.await_spec.projector
            if step.await_spec.completion_type is None:
                continue
        if reference is None:
            checker.problem("has no Python function; add 'python: module:function', or name it under 'bindings'")
            continue
        try:
            function = resolve(reference)
        except ConfigError as error:
            for problem in error.problems:
                checker.problem(f"has no function: {problem.message}")
            continue
        bound = checker.projector(function) if step.kind is StepKind.AWAIT else checker.function(function)
        if bound is not None:
            found[step.step_id] = bound
    if problems:
        raise ConfigError(problems)
    return found


@frozen
class _Checker:
    """Checks the function of one step."""

    pipeline: Pipeline
    step: Step
    problems: list[Problem]

    def problem(self, message: str) -> None:
        self.problems.append(Problem(f"$.steps[{self.step.index}]", f"step {self.step.step_id!r} {message}"))

    def function(self, function: object) -> StepFunction | None:
        if not callable(function) or isinstance(function, type):
            self.problem(f"is bound to {self.step.python}, which is not a function")
            return None
        before = len(self.problems)
        style = self._style(function)
        wants_context = self._parameters(function)
        self._annotations(function)
        if self.step.process:
            self._process(function, wants_context=wants_context)
        if style is None or len(self.problems) > before:
            return None
        return StepFunction(function, style, wants_context)

    def projector(self, function: object) -> StepFunction | None:
        """A plain ``(request, completion, metadata) -> output``."""
        if not callable(function) or _is_async(function):
            self.problem("needs a plain function as projector")
            return None
        if len(_positional(function)) != _PROJECTOR_ARGUMENTS:
            self.problem("has a projector that does not take (request, completion, metadata)")
            return None
        return StepFunction(function, CallStyle.INLINE, wants_context=False)

    def _style(self, function: Callable[..., Any]) -> CallStyle | None:
        target = _target(function)
        cardinality = self.step.cardinality
        plain = not (_is_async(function) or inspect.isgeneratorfunction(target))
        if (self.step.inline or self.step.process) and not plain:
            self.problem("is inline or in a process, which takes a plain def")
            return None
        match cardinality:
            case Cardinality.ONE_TO_MANY if inspect.isasyncgenfunction(target):
                return CallStyle.ASYNC_GENERATOR
            case Cardinality.ONE_TO_MANY if inspect.isgeneratorfunction(target):
                return CallStyle.GENERATOR
            case Cardinality.MANY_TO_MANY if inspect.isasyncgenfunction(target):
                return CallStyle.ASYNC_GENERATOR
            case Cardinality.MANY_TO_ONE if inspect.iscoroutinefunction(target):
                return CallStyle.ASYNC
            case Cardinality.ONE_TO_ONE | Cardinality.SIDE_EFFECT if inspect.iscoroutinefunction(target):
                return CallStyle.ASYNC
            case Cardinality.ONE_TO_ONE | Cardinality.SIDE_EFFECT if plain:
                if self.step.inline:
                    return CallStyle.INLINE
                return CallStyle.PROCESS if self.step.process else CallStyle.THREAD
        self.problem(f"is {cardinality}, which takes {_WANTED[cardinality]}")
        return None

    def _parameters(self, function: Callable[..., Any]) -> bool:
        """Whether it wants the context. The value is passed by position, the context by name."""
        parameters = dict(inspect.signature(function).parameters)
        context = parameters.pop(CONTEXT, None)
        if not _positional(function) or next(iter(inspect.signature(function).parameters)) == CONTEXT:
            self.problem("has a function without a parameter for the value")
            return context is not None
        others = list(parameters.values())[1:]
        for one in others:
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                self.problem(f"has a function that needs {one.name!r}; it gets the value and, by name, 'context'")
        if context is not None and context.kind is context.POSITIONAL_ONLY:
            self.problem("has a function whose 'context' is positional-only; it is passed by name")
        return context is not None

    def _annotations(self, function: Callable[..., Any]) -> None:
        hints = _hints(function)
        types = self.pipeline.types
        wanted = types.annotation(self.step.input_type)
        narrowed: Any = typing.Union.__getitem__(tuple(types.cls(name) for name in self._taken()))
        value = hints.get(next(iter(inspect.signature(function).parameters), ""), _UNKNOWN)
        streams: tuple[type, ...] = _ASYNC_STREAMS if self.step.cardinality.takes_many else ()
        if not any(_fits(value, streams, one, exactly=True) for one in (wanted, narrowed)):
            self._misfit("takes", wanted, value, streams)
        if self.step.cardinality is Cardinality.SIDE_EFFECT:
            return
        wanted = types.annotation(self.step.output_type)
        result = hints.get("return", _UNKNOWN)
        streams = _STREAMS if self.step.cardinality.gives_many else ()
        if not _fits(result, streams, wanted, exactly=False):
            self._misfit("gives", wanted, result, streams)

    def _misfit(self, verb: str, wanted: object, annotation: object, streams: tuple[type, ...]) -> None:
        what = f"a stream of {describe(wanted)}" if streams else describe(wanted)
        self.problem(f"{verb} {what}, but its function is annotated {describe(annotation)}")

    def _taken(self) -> tuple[str, ...]:
        return self.step.accepts or self.pipeline.types.concrete(self.step.input_type)

    def _process(self, function: Callable[..., Any], *, wants_context: bool) -> None:
        """What crosses to another process must be importable there."""
        if "<locals>" in getattr(function, "__qualname__", "<locals>"):
            self.problem("runs in a process; its function must stand at the top level of a module")
        if wants_context:
            self.problem("runs in a process, where there is no context; drop the parameter")
        for type_name in (*self._taken(), *self.pipeline.types.concrete(self.step.output_type)):
            if type_name not in self.pipeline.types.python_names:
                self.problem(f"runs in a process; bind {type_name} to a class of your own in python.types")


_WANTED: Mapping[Cardinality, str] = {
    Cardinality.ONE_TO_ONE: "an async def or a plain def",
    Cardinality.SIDE_EFFECT: "an async def or a plain def",
    Cardinality.ONE_TO_MANY: "an async generator or a generator (a def with yield)",
    Cardinality.MANY_TO_ONE: "an async def over an async iterator",
    Cardinality.MANY_TO_MANY: "an async generator over an async iterator",
}


def _target(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose kind (async, generator) counts: of a callable object, its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _is_async(function: Callable[..., Any]) -> bool:
    target = _target(function)
    return inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters that can be given by position, except the context."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [one for one in parameters if one.kind in kinds and one.name != CONTEXT]


def _hints(function: Callable[..., Any]) -> dict[str, object]:
    """Annotations that can be evaluated, one by one: a name imported only for type checkers spoils only its own."""
    target = _target(function)
    found: dict[str, object] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        holder = python_types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints = typing.get_type_hints(holder, getattr(target, "__globals__", {}))
        except (NameError, AttributeError):
            continue
        found[name] = hints[name]
    return found


def _fits(annotation: object, streams: tuple[type, ...], wanted: object, *, exactly: bool) -> bool:
    """Whether an annotation allows the contract's type.

    Args:
        annotation: of the parameter or the result; open ones fit everything.
        streams: it must be one of these over the type; empty: the type itself.
        wanted: the contract's type.
        exactly: False lets a function promise less than the whole union.
    """
    if _open(annotation):
        return True
    if streams:
        if typing.get_origin(annotation) not in streams:
            return False
        annotation = typing.get_args(annotation)[0]
    if exactly:
        return _open(annotation) or same_annotation(annotation, wanted)
    return _open(annotation) or _members(annotation) <= _members(wanted)


def _open(annotation: object) -> bool:
    """It says nothing about the type."""
    return annotation in (_UNKNOWN, Any, object)


def _members(annotation: object) -> set[object]:
    if typing.get_origin(annotation) in (typing.Union, python_types.UnionType):
        return set(typing.get_args(annotation))
    return {annotation}
