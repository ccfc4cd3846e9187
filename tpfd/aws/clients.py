"""Clients of AWS that try once and never wait for a connection of their pool.

The SDK is imported when the first client is made, so that a daemon without AWS neither needs nor loads it.
"""

from __future__ import annotations

import base64
import functools
import os
from typing import Any

import orjson

from tpfd.errors import ConfigError, Problem

CONNECT_TIMEOUT_S = 5.0
_ASIDE = "tpfd-parameters"


def make_client(
    service: str,
    *,
    region: str,
    endpoint: str,
    connections: int,
    read_timeout_s: float = 10.0,
    as_it_stands: bool = False,
) -> Any:
    """A client with a session, credentials and connections of its own. Blocks: the first of a service reads 50 to
    200 ms of files; what describes the service is shared by all.

    Args:
        service: as the SDK names it: `dynamodb`, `sqs`, `s3`.
        region: empty takes AWS_REGION, then the SDK's own (AWS_DEFAULT_REGION, the shared configuration file).
        endpoint: another URL than the region's; empty: the region's.
        connections: calls at a time; as many as the limiter of its threads lets through.
        read_timeout_s: silence after which a call's outcome counts as unknown; longer than a long poll waits.
        as_it_stands: only for `dynamodb`: parameters go out as they are given, without the SDK's walks over them, which
            for a large transaction are most of a request's work. The service says what is wrong with them.

    Raises:
        ConfigError: the SDK is not installed, no region is known, or the endpoint or the configuration is broken.
    """
    try:
        import botocore.config
        import botocore.exceptions
        import botocore.session
    except ImportError as error:
        raise _unusable(service, "needs the AWS SDK: pip install 'tpfd[aws]'") from error
    settings = botocore.config.Config(
        retries={"total_max_attempts": 1, "mode": "standard"},  # whether to repeat is for the caller to decide
        max_pool_connections=connections,
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        tcp_keepalive=True,
        parameter_validation=not as_it_stands,
        # A stand-in has no host name per bucket.
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    try:
        session = botocore.session.Session()
        session.register_component("data_loader", _descriptions())
        where = region or os.environ.get("AWS_REGION") or None
        client = session.create_client(service, region_name=where, endpoint_url=endpoint or None, config=settings)
    except botocore.exceptions.NoRegionError as error:
        raise _unusable(service, "no region is set: set `region` or AWS_REGION") from error
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise _unusable(service, str(error)) from error
    if as_it_stands:
        client.meta.events.register("provide-client-params.dynamodb", _set_aside)
        client.meta.events.register("before-call.dynamodb", _put_back)
    return client


# The wire form of a DynamoDB request is its parameters as JSON, so nothing has to be translated.


def _set_aside(params: dict[str, Any], context: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Leaves to the SDK only what it may choose the endpoint by: the names of tables, alone or as keys."""
    context[_ASIDE] = params
    left: dict[str, Any] = {name: value for name, value in params.items() if isinstance(value, str)}
    return left | {name: {key: {} for key in value} for name, value in params.items() if isinstance(value, dict)}


def _put_back(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    params["body"] = orjson.dumps(context.pop(_ASIDE), default=_as_text)


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is nothing that DynamoDB takes")


@functools.cache
def _descriptions() -> Any:
    """What the SDK knows of each service: read once in a process, not once for each of a dozen clients."""
    import botocore.loaders

    return botocore.loaders.create_loader()


def _unusable(service: str, message: str) -> ConfigError:
    return ConfigError([Problem("$", f"{service}: {message}")])
