"""From the file, the environment and the command line to one `Config`.

Precedence: flag, then environment (``TPFD_`` and the path in capitals, ``__`` between levels), then file, then default.
Every source is checked whole, also where a stronger one wins, and all problems are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import attrs

from tpfd.config.keys import KEYS, SECTIONS, Key, build
from tpfd.config.model import Config
from tpfd.config.rules import check_combinations
from tpfd.config.suggest import meant_variable, unknown_key, unknown_path
from tpfd.config.support import unsupported
from tpfd.config.values import read_value, shown
from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.yaml_text import Located, Substituted, read_located, substitute

FLAG: Final = "flag"
DEFAULT: Final = "default"

CLIENT_VARIABLES: Final = frozenset(
    {"TPFD_CONFIG", "TPFD_OUTPUT", "TPFD_TENANT", "TPFD_TOKEN", "TPFD_TOKEN_FILE", "TPFD_URL"}
)
"""Variables of the command-line client, which a daemon in the same shell sees too."""


@attrs.frozen
class Loaded:
    """A configuration and where each part of it came from.

    Attributes:
        config: the values in effect.
        origins: by key path (``lease.duration``): ``flag``, ``environment TPFD_…``, ``FILE:LINE`` or ``default``.
    """

    config: Config
    origins: Mapping[str, str]


@attrs.frozen
class _Setting:
    """A value as one source wrote it."""

    key: Key
    written: object
    origin: str


def load_config(
    file_text: str | None,
    origin: str,
    environ: Mapping[str, str],
    flags: Mapping[str, str],
) -> Loaded:
    """Work out the configuration a daemon runs with.

    Args:
        file_text: text of ``tpfd.yaml``; None when there is no file.
        origin: the file's name, for messages and origins.
        environ: environment variables; used for ``TPFD_…`` keys and for ``${NAME}`` in the file.
        flags: values from the command line by key path, as ``{"http.bind": "127.0.0.1:9000"}``.

    Raises:
        ConfigError: with every problem found, among them keys whose part is not in this build.
    """
    loaded, problems = _load(file_text, origin, environ, flags)
    if problems := (*problems, *unsupported(loaded.config)):
        raise ConfigError(_with_origin(problem, loaded.origins) for problem in problems)
    return loaded


def parse_config(
    file_text: str | None,
    origin: str,
    environ: Mapping[str, str],
    flags: Mapping[str, str],
) -> Loaded:
    """As `load_config`, for this and later builds alike: keys of parts that are not built are taken.

    Raises:
        ConfigError: with every problem found.
    """
    loaded, problems = _load(file_text, origin, environ, flags)
    if problems:
        raise ConfigError(_with_origin(problem, loaded.origins) for problem in problems)
    return loaded


def _load(
    file_text: str | None, origin: str, environ: Mapping[str, str], flags: Mapping[str, str]
) -> tuple[Loaded, tuple[Problem, ...]]:
    """Values that are each right, and what is wrong with them taken together.

    Raises:
        ConfigError: some value is not right by itself.
    """
    problems: list[Problem] = []
    settings = [
        *(_from_file(file_text, origin, environ, problems.append) if file_text is not None else ()),
        *_from_environment(environ, file_text or "", problems.append),
        *_from_flags(flags, problems.append),
    ]
    values: dict[str, object] = {}
    origins = dict.fromkeys(KEYS, DEFAULT)
    for setting in settings:  # weakest source first, so that the strongest is written last
        try:
            values[setting.key.path] = read_value(setting.key, setting.written)
        except ConfigError as error:
            problems.extend(Problem(one.path, f"{setting.origin}: {one.message}") for one in error.problems)
        origins[setting.key.path] = setting.origin
    if problems:
        raise ConfigError(problems)
    config = build(values)
    if "strict-startup" not in values:
        config = attrs.evolve(config, strict_startup=config.node.production)
        if "node.production" in values:
            origins["strict-startup"] = f"{origins['node.production']} (node.production)"
    return Loaded(config, origins), check_combinations(config)


def _with_origin(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """Say where the key of a problem was set, if anybody set it."""
    origin = origins.get(problem.path.removeprefix("$.").partition("[")[0], DEFAULT)
    return problem if origin == DEFAULT else Problem(problem.path, f"{origin}: {problem.message}")


def _from_file(
    text: str, origin: str, environ: Mapping[str, str], report: Callable[[Problem], None]
) -> Iterator[_Setting]:
    try:
        located = read_located(text, origin)
    except ConfigError as error:
        # flow YAML reads the brace of ${NAME} as its own, and the parser's message does not help there
        hint = "; inside {...} and [...] write ${NAME} in quotes" if "${" in text else ""
        for problem in error.problems:
            report(Problem(problem.path, f"{problem.message}{hint if 'not YAML' in problem.message else ''}"))
        return
    tree, unset = located.tree, False
    try:
        tree = substitute(tree, environ)
    except ConfigError as error:
        unset = True  # go on with what was written, to find the other problems too
        for problem in error.problems:
            report(Problem(problem.path, f"{_place(problem.path, origin, located)}: {problem.message}"))
    if tree is None:  # an empty file, or one that is all comments
        return
    if not isinstance(tree, dict):
        report(Problem("$", f"{origin}: {shown(tree)} stands where sections and keys should"))
        return
    for setting in _walk(tree, "", origin, located, report):
        if not (unset and _mentions_reference(setting.written)):
            yield setting


def _walk(
    section: Mapping[str, object], prefix: str, origin: str, located: Located, report: Callable[[Problem], None]
) -> Iterator[_Setting]:
    for name, written in section.items():
        path = f"{prefix}{name}"
        place = _place(f"$.{path}", origin, located)
        if path in KEYS and "." not in name:
            yield _Setting(KEYS[path], written, place)
        elif path not in SECTIONS or "." in name:
            report(Problem(f"$.{path}", f"{place}: {unknown_key(prefix.rstrip('.'), name)}"))
        elif isinstance(written, dict):
            yield from _walk(written, f"{path}.", origin, located, report)
        elif written is not None:  # a section whose keys are all commented out is empty, not wrong
            report(Problem(f"$.{path}", f"{place}: {shown(written)} stands where keys should; {unknown_path(path)}"))


def _place(path: str, origin: str, located: Located) -> str:
    return f"{origin}:{located.lines.get(path, 1)}"


def _mentions_reference(written: object) -> bool:
    match written:
        case str():
            return "${" in written
        case dict():
            return any(map(_mentions_reference, written.values()))
        case list():
            return any(map(_mentions_reference, written))
        case _:
            return False


def _from_environment(
    environ: Mapping[str, str], file_text: str, report: Callable[[Problem], None]
) -> Iterator[_Setting]:
    """Variables that set a key, and complaints about those that look as if they should.

    Others with ``TPFD_`` in front are let be: service discovery makes some (``TPFD_PORT_8081_TCP``), and the file may
    name one of its own (``${TPFD_SECRET_DIR}``).
    """
    named_in_file = set(re.findall(r"TPFD_\w+", file_text))
    by_variable = {key.environment: key for key in KEYS.values()}
    for variable in sorted(name for name in environ if name.startswith("TPFD_")):
        if variable in by_variable:
            yield _Setting(by_variable[variable], Substituted(environ[variable]), f"environment {variable}")
        elif variable not in CLIENT_VARIABLES | named_in_file:
            meant = meant_variable(variable)
            if meant or "__" in variable:
                hint = f"nearest is {meant}" if meant else "'tpfd check' lists all keys"
                report(Problem("$", f"environment {variable} sets no key; {hint}"))


def _from_flags(flags: Mapping[str, str], report: Callable[[Problem], None]) -> Iterator[_Setting]:
    for path, text in flags.items():
        if path in KEYS:
            yield _Setting(KEYS[path], Substituted(text), FLAG)
        else:
            report(Problem(f"$.{path}", f"{FLAG}: {unknown_path(path)}"))
