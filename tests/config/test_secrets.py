"""Secrets: where they may come from, what is refused, and that they are never shown."""

from __future__ import annotations

import os
import pickle
import traceback
from pathlib import Path

import pytest

from tpfd.config.fields import SecretRef
from tpfd.config.keys import build
from tpfd.config.secrets import Secret, read_secret, read_secrets
from tpfd.errors import ConfigError

VALUE = b"0123456789abcdef"


def private(path: Path, value: bytes = VALUE, mode: int = 0o600) -> str:
    path.write_bytes(value)
    path.chmod(mode)
    return str(path)


def test_from_a_file_the_environment_and_a_credential(tmp_path: Path) -> None:
    file = private(tmp_path / "token", VALUE + b"\n")
    environ = {"SECRET": VALUE.decode(), "CREDENTIALS_DIRECTORY": str(tmp_path)}
    for reference in (SecretRef("file", file), SecretRef("env", "SECRET"), SecretRef("credential", "token")):
        assert read_secret(reference, environ).reveal() == VALUE


@pytest.mark.parametrize(
    ("written", "read"),
    [(VALUE + b"\r\n", VALUE), (VALUE + b"\n\n", VALUE + b"\n"), (VALUE + b" ", VALUE + b" "), (VALUE, VALUE)],
)
def test_one_line_end_is_not_part_of_it(tmp_path: Path, written: bytes, read: bytes) -> None:
    assert read_secret(SecretRef("file", private(tmp_path / "s", written)), {}).reveal() == read


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
def test_owner_and_group_may_read(tmp_path: Path, mode: int) -> None:
    assert read_secret(SecretRef("file", private(tmp_path / "s", mode=mode)), {})


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o602, 0o666])
def test_a_file_open_to_others_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    file = private(tmp_path / "s", mode=mode)
    with pytest.raises(ValueError, match=rf"open to others \(mode {mode:04o}\); run: chmod 0400 {file}"):
        read_secret(SecretRef("file", file), {})


def test_what_is_no_usable_secret(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    environ = {"SHORT": "short", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    cases = {
        SecretRef("file", str(tmp_path / "none")): "cannot be read: No such file",
        SecretRef("file", "a\0b"): "cannot be read: not a file name",
        SecretRef("file", str(tmp_path)): "not a regular file",
        SecretRef("file", str(tmp_path / "fifo")): "not a regular file",
        SecretRef("file", private(tmp_path / "long", b"x" * 4097)): "longer than 4096 bytes",
        SecretRef("file", private(tmp_path / "short", b"x" * 15)): "holds 15 bytes, at least 16 are needed",
        SecretRef("env", "SHORT"): "holds 5 bytes",
        SecretRef("env", "NONE"): "environment variable NONE is not set",
        SecretRef("credential", "../x"): "is not a credential's name",
        SecretRef("credential", ".."): "is not a credential's name",
        SecretRef("credential", "none"): "cannot be read",
    }
    for reference, message in cases.items():
        with pytest.raises(ValueError, match=message):
            read_secret(reference, environ)
    with pytest.raises(ValueError, match="CREDENTIALS_DIRECTORY"):
        read_secret(SecretRef("credential", "x"), {})


def test_all_secrets_at_once_in_their_order(tmp_path: Path) -> None:
    config = build(
        {
            "await.resume-token-secrets": (SecretRef("env", "NEW", "k2"), SecretRef("env", "OLD", "k1")),
            "http.admin-token-file": private(tmp_path / "admin", b"admin-0123456789"),
            "http.api-token-file": private(tmp_path / "api", b"api-0123456789abc"),
        }
    )
    secrets = read_secrets(config, {"NEW": "new-0123456789abc", "OLD": "old-0123456789abc"})
    assert [(one.kid, one.secret.reveal()[:3]) for one in secrets.resume] == [("k2", b"new"), ("k1", b"old")]
    assert secrets.admin_tokens is not None
    assert secrets.admin_tokens.matches(b"admin-0123456789")
    assert secrets.api_tokens is not None
    assert not secrets.api_tokens.matches(b"admin-0123456789")
    nothing = read_secrets(build({}), {})
    assert (nothing.resume, nothing.admin_tokens, nothing.api_tokens) == ((), None, None)


def test_every_problem_is_reported_with_its_path(tmp_path: Path) -> None:
    config = build(
        {
            "await.resume-token-secrets": (SecretRef("env", "A"), SecretRef("env", "B", "k")),
            "http.admin-token-file": private(tmp_path / "admin", b"too short"),
            "http.api-token-file": str(tmp_path / "none"),
        }
    )
    with pytest.raises(ConfigError) as caught:
        read_secrets(config, {"B": VALUE.decode()})
    assert sorted(problem.path for problem in caught.value.problems) == [
        "$.await.resume-token-secrets[0]",
        "$.http.admin-token-file",
        "$.http.api-token-file",
    ]


def test_a_token_file_may_hold_several_lines(tmp_path: Path) -> None:
    lines = b"# who may come in\napi-0123456789abc submit,complete\nother-0123456789 operate acme\n"
    secrets = read_secrets(build({"http.api-token-file": private(tmp_path / "api", lines)}), {})
    assert secrets.api_tokens is not None
    assert secrets.api_tokens.reveal() == lines.removesuffix(b"\n")


def test_a_secret_is_never_shown() -> None:
    secret = Secret(VALUE)
    assert VALUE.decode() not in f"{secret} {secret!r} {[secret]}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        hash(secret)
    assert secret == Secret(bytes(VALUE))
    assert secret != VALUE


def test_the_message_never_repeats_what_was_read(tmp_path: Path) -> None:
    file = private(tmp_path / "s", b"hunter2")
    with pytest.raises(ValueError, match="7 bytes") as caught:
        read_secret(SecretRef("file", file), {})
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
