"""Puts the parts of the daemon together."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import trio
from attrs import define

from tpfd.awaits.admission import Admission
from tpfd.awaits.live import LiveAwaits
from tpfd.awaits.sessions import Sessions
from tpfd.clock import SystemClock
from tpfd.codec.schemas import input_schema
from tpfd.config import reload
from tpfd.config.load import Loaded
from tpfd.config.model import Config
from tpfd.config.secrets import Secrets, read_secrets
from tpfd.config.startup import PipelineNeeds, check_startup
from tpfd.core.records import ExecutionId, TenantId
from tpfd.core.tokens import SigningKey
from tpfd.daemon import object_providers, providers
from tpfd.daemon.brokers import Brokers, make_brokers
from tpfd.daemon.dispatching import Hinting, SqsQueues, make_hinting
from tpfd.daemon.programs import load_programs, needs
from tpfd.daemon.sampler import Sampler
from tpfd.daemon.webhooks import Webhooks, allow_list, make_webhooks, targets
from tpfd.engine.attempts import Attempts
from tpfd.engine.claims import ClaimLoop
from tpfd.engine.continuations import Continuations
from tpfd.engine.hints import HintPoller
from tpfd.engine.leases import LeaseKeeper
from tpfd.engine.rejecting import Rejecting
from tpfd.engine.sweeper import Sweeper
from tpfd.engine.tidying import Tidying
from tpfd.errors import ConfigError, Problem
from tpfd.http import auth
from tpfd.http.server import serve
from tpfd.http.settings import HttpSettings, TlsFiles
from tpfd.metrics import Metrics
from tpfd.objects.ingest import Ingest
from tpfd.objects.protocol import AfterKind, ListedObject
from tpfd.ops import logs
from tpfd.ops.logs import get_logger
from tpfd.program import Program
from tpfd.runtime import Runtime
from tpfd.service.coordinator import Coordinator
from tpfd.service.listing import Listing
from tpfd.service.submitting import KeyPolicy, Submitting
from tpfd.stores.protocol import Store
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.held import take_back
from tpfd.transports.websocket import ProviderSockets

log = get_logger("tpfd.daemon")


@define(eq=False, kw_only=True)
class Daemon:
    """All parts of one daemon, wired.

    Attributes:
        hinting: work over hints between hosts; None: it stays on this one.
        hints: receives them.
        reread: reads the configuration again, as at the start.
    """

    loaded: Loaded
    runtime: Runtime
    needs: PipelineNeeds
    keeper: LeaseKeeper
    attempts: Attempts
    claims: ClaimLoop
    sweeper: Sweeper
    tidying: Tidying
    sockets: ProviderSockets
    webhooks: Webhooks
    brokers: Brokers
    coordinator: Coordinator
    ingests: list[Ingest]
    sampler: Sampler
    hinting: Hinting | None
    hints: HintPoller | None
    http: HttpSettings
    reread: Callable[[], Loaded]

    @property
    def grace_ms(self) -> int:
        """Time that work gets at a drain."""
        return self.loaded.config.drain.grace_ms

    async def serve_http(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """The edge."""
        schemas = {name: input_schema(program.pipeline) for name, program in self.runtime.programs.items()}
        await serve(self.coordinator, self.http, self.runtime.metrics, input_schemas=schemas, task_status=task_status)

    def reload(self) -> None:
        """Takes what a running daemon can take of a changed configuration and says what it cannot."""
        try:
            new = self.reread()
            keys = _signing_keys(read_secrets(new.config, os.environ))
            allowed = allow_list(new.config)
            for program in self.runtime.programs.values():
                targets(self.loaded.config, program.pipeline, allowed)
            if errors := check_startup(new.config, self.needs).errors:
                raise ConfigError(errors)
        except (ConfigError, OSError) as error:
            log.error("reload_refused", message=str(error))
            return
        self.coordinator.admission.keys = keys
        self.sockets.envelopes.key = keys[0] if keys else None
        self.webhooks.allow(allowed)
        changed = reload.changes(self.loaded.config, new.config)
        logs.set_level(new.config.telemetry.log.level)
        log.info(
            "reloaded",
            taken=[key.path for key in changed.reloadable],
            needs_restart=[key.path for key in changed.restart],
        )


def assemble(
    loaded: Loaded, reread: Callable[[], Loaded], store: Store, draining: trio.Event, metrics: Metrics | None = None
) -> Daemon:
    """Wires a daemon.

    Args:
        metrics: those that the store counts in already; None: new ones.

    Raises:
        ConfigError: pipelines, secrets or targets cannot be used; every problem of the first kind that has any.
    """
    config = loaded.config
    programs = load_programs(config, os.environ)
    secrets = read_secrets(config, os.environ)
    keys = _signing_keys(secrets)
    clock = SystemClock()
    runtime = Runtime(
        node=providers.node_name(config),
        store=store,
        policy=providers.policy(config),
        settings=providers.engine_settings(config),
        clock=clock,
        random=providers.random_source(),
        programs=programs,
        metrics=metrics or Metrics(),
        threads=providers.step_threads(config),
    )
    queues = SqsQueues(config, runtime.metrics)
    hinting = make_hinting(config, runtime, queues)
    if hinting is not None:
        runtime = hinting.told_by(runtime)
    inputs = object_providers.inputs(programs, clock, runtime.metrics, config.execution.max_payload_bytes)
    sessions = Sessions()
    envelopes = EnvelopeWriter(keys[0] if keys else None)
    sockets = ProviderSockets(runtime=runtime, envelopes=envelopes)
    keeper = LeaseKeeper(runtime)
    rejecting = Rejecting(
        runtime=runtime,
        sink=providers.item_rejects(config, queues),
        include_payload=config.item_rejects.include_payload,
        fail_pipeline=config.item_rejects.publish_failure_policy == "FAIL_PIPELINE",
    )
    attempts = Attempts(
        runtime=runtime,
        keeper=keeper,
        live=LiveAwaits(runtime=runtime, sessions=sessions, outlet=sockets),
        publishers=object_providers.publishers(programs, clock, runtime.metrics),
        openers={one.program.pipeline_id: one.source.open_object for one in inputs},
        rejects=rejecting,
    )
    claims = ClaimLoop(runtime, attempts.run, hinted=hinting is not None)
    admission = Admission(
        runtime=runtime, sessions=sessions, outlet=sockets, commit=claims.commit, rejects=rejecting, keys=keys
    )
    letters = providers.dead_letters(config, queues)
    sweeper = Sweeper(
        runtime=runtime,
        deadlines=admission,
        continuations=Continuations(runtime=runtime),
        take_back=functools.partial(take_back, runtime, closing=False),
    )
    submitting = Submitting(
        runtime=runtime, key_policy=KeyPolicy(config.execution.idempotency_policy), commit=claims.commit
    )
    coordinator = Coordinator(
        runtime=runtime,
        submitting=submitting,
        listing=Listing(runtime),
        admission=admission,
        sockets=sockets,
        draining=draining,
    )
    return Daemon(
        loaded=loaded,
        runtime=runtime,
        needs=needs(programs),
        keeper=keeper,
        attempts=attempts,
        claims=claims,
        sweeper=sweeper,
        tidying=Tidying(runtime=runtime, dead_letters=letters, settled=sockets.settled, forget=store.forget),
        sockets=sockets,
        webhooks=make_webhooks(config, runtime, envelopes, admission.give_up),
        brokers=make_brokers(config, runtime, sockets, envelopes, admission, letters, queues),
        coordinator=coordinator,
        ingests=_ingests(config, runtime, submitting, inputs),
        sampler=Sampler(
            runtime=runtime,
            keeper=keeper,
            tenant_id=TenantId(config.tenancy.default_tenant),
            statistics=providers.statistics_of(store),
        ),
        hinting=hinting,
        hints=None if hinting is None else hinting.poller(claims, draining),
        http=_http(config, secrets),
        reread=reread,
    )


def _signing_keys(secrets: Secrets) -> tuple[SigningKey, ...]:
    """The secrets of resume tokens and webhooks; the first signs."""
    return tuple(SigningKey(one.kid, one.secret.reveal()) for one in secrets.resume)


def _ingests(
    config: Config, runtime: Runtime, submitting: Submitting, inputs: Sequence[object_providers.Input]
) -> list[Ingest]:
    tenant = TenantId(config.tenancy.default_tenant)
    found = []
    for one in inputs:
        if not one.polled:
            continue
        program, name = one.program, one.name
        spec = program.pipeline.sources[name]
        found.append(
            Ingest(
                name=f"{program.pipeline_id}/{name}",
                tenant_id=tenant,
                source=one.source,
                read=one.reader,
                submit=functools.partial(_submit_object, submitting, program, keep=one.after.kind is AfterKind.KEEP),
                store=runtime.store,
                after=one.after,
                poll_interval_ms=spec.poll_interval_ms,
                batch_size=spec.batch_size,
                trouble=runtime.trouble,
            )
        )
    return found


async def _submit_object(
    submitting: Submitting,
    program: Program,
    tenant_id: TenantId,
    source: str,
    listed: ListedObject,
    data: object,
    identity: str,
    *,
    keep: bool,
) -> tuple[ExecutionId, bool]:
    return await submitting.ingest(tenant_id, program, source, listed.key, data, identity, keep=keep)


def _http(config: Config, secrets: Secrets) -> HttpSettings:
    http = config.http
    tls = TlsFiles(Path(http.tls.cert), Path(http.tls.key)) if http.tls.cert else None
    return HttpSettings(
        host=http.bind.host,
        port=http.bind.port,
        max_body_bytes=http.max_body_bytes,
        request_timeout_ms=http.request_timeout_ms,
        header_timeout_ms=http.header_timeout_ms,
        max_connections=http.max_connections,
        tls=tls,
        tokens=_tokens(secrets),
        default_tenant=config.tenancy.default_tenant,
        tenant_required=config.tenancy.required,
    )


def _tokens(secrets: Secrets) -> tuple[auth.Token, ...]:
    """Everybody who may come in.

    Raises:
        ConfigError: a line of a token file cannot be used, or a token stands in both files.
    """
    found: list[auth.Token] = []
    problems: list[Problem] = []
    files = (
        ("$.http.api-token-file", secrets.api_tokens, auth.API_ROLES),
        ("$.http.admin-token-file", secrets.admin_tokens, auth.ADMIN_ROLES),
    )
    for path, content, roles in files:
        if content is None:
            continue
        try:
            text = content.reveal().decode("ascii")
            tokens = auth.parse_tokens(text, origin=path, usual_roles=roles)
        except UnicodeDecodeError:
            problems.append(Problem(path, "a token file is ASCII text: one token per line"))
            continue
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        if {token.digest for token in tokens} & {token.digest for token in found}:
            problems.append(Problem(path, "holds a token that stands in http.api-token-file too"))
        found.extend(tokens)
    if problems:
        raise ConfigError(problems)
    return tuple(found)
