"""The constraints of a wrapped scalar, as one check."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tpfd.codec.kinds import Unfit
from tpfd.codec.scalars import SCALARS, ScalarCodec
from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.declarations import Constraints, WrapperDecl

Check = Callable[[Any], None]

_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(?:\.[^@\s.]+)+")


def wrapper_codec(declaration: WrapperDecl) -> ScalarCodec:
    """Reader and writer of a wrapper: those of its scalar, and every constraint on the Python value.

    Raises:
        ConfigError: an allowed value is not one of the scalar's.
    """
    scalar = SCALARS[declaration.scalar]
    checks = _checks(declaration)
    if not checks:
        return scalar

    def read(value: Any, _type: Any = None) -> Any:
        found = scalar.read(value, None)
        for check in checks:
            check(found)
        return found

    def write(value: Any) -> Any:
        found = scalar.write(value)
        for check in checks:
            check(value)
        return found

    return ScalarCodec(read, write)


def _checks(declaration: WrapperDecl) -> tuple[Check, ...]:
    """Lengths stand before the pattern, so that the pattern sees only texts of a bounded length."""
    constraints = declaration.constraints
    found = [*_length_checks(constraints), *_bound_checks(constraints)]
    if constraints.pattern is not None:
        found.append(_matches(re.compile(constraints.pattern), f"must match {constraints.pattern}"))
    if constraints.email:
        found.append(_matches(_EMAIL, "must be an e-mail address"))
    if constraints.allowed_values:
        found.append(_allowed(declaration))
    return tuple(found)


def _length_checks(constraints: Constraints) -> list[Check]:
    found: list[Check] = []
    low, high = constraints.min_length, constraints.max_length
    if low is not None:
        found.append(_demand(lambda value: len(value) >= low, f"must have {low} characters or more"))
    if high is not None:
        found.append(_demand(lambda value: len(value) <= high, f"must have {high} characters or less"))
    return found


def _bound_checks(constraints: Constraints) -> list[Check]:
    bounds: tuple[tuple[Decimal | None, Callable[[Any, Any], bool], str], ...] = (
        (constraints.minimum, operator.ge, "must be {} or more"),
        (constraints.minimum_exclusive, operator.gt, "must be more than {}"),
        (constraints.maximum, operator.le, "must be {} or less"),
        (constraints.maximum_exclusive, operator.lt, "must be less than {}"),
    )
    return [_bound(holds, bound, message.format(bound)) for bound, holds, message in bounds if bound is not None]


def _bound(holds: Callable[[Any, Any], bool], bound: Decimal, message: str) -> Check:
    return _demand(lambda value: holds(value, bound), message)


def _demand(holds: Callable[[Any], bool], message: str) -> Check:
    def check(value: Any) -> None:
        if not holds(value):
            raise Unfit(message)

    return check


def _matches(pattern: re.Pattern[str], message: str) -> Check:
    return _demand(lambda value: pattern.fullmatch(value) is not None, message)


def _allowed(declaration: WrapperDecl) -> Check:
    read = SCALARS[declaration.scalar].read
    allowed: list[Any] = []
    problems: list[Problem] = []
    for index, one in enumerate(declaration.constraints.allowed_values):
        try:
            allowed.append(read(one, None))
        except ValueError as error:
            problems.append(Problem(f"$.types.{declaration.name}.allowedValues[{index}]", str(error)))
    if problems:
        raise ConfigError(problems)
    names = ", ".join(str(Decimal(one) if isinstance(one, Decimal) else one) for one in allowed)
    return _demand(lambda value: value in allowed, f"must be one of {names}")
