"""What a step function may ask for besides its input.

A step function that has a parameter ``context`` gets a ``StepContext``; one that has not, gets none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from tpfd.core.records import ExecutionId, TenantId
from tpfd.ops.logs import Log


@frozen(kw_only=True)
class StepContext:
    """The surroundings of one call of a step function.

    Attributes:
        execution_id: the execution.
        tenant_id: whose it is.
        pipeline_id: which pipeline.
        step_id: which step.
        idempotency_key: stable name of this piece of work, over retries, takeovers and re-drives; give it to providers.
        transition_key: name of this attempt, for logs.
        attempt: 0 on the first run.
        item_index: place in the source; None outside a stream.
        deadline_epoch_ms: when the step must be done; None: no limit.
        logger: structured log that carries the execution's names: ``logger.info("event", field=value)``.
        reject_item: `(item, error)`: hand one item to the reject sink and go on without it.
        reject_stream: `(sample, count, error)`: hand over that a whole stream was rejected.
    """

    execution_id: ExecutionId
    tenant_id: TenantId
    pipeline_id: str
    step_id: str
    idempotency_key: str
    transition_key: str
    attempt: int
    item_index: int | None
    deadline_epoch_ms: int | None
    logger: Log
    reject_item: Callable[[object, BaseException], None]
    reject_stream: Callable[[Sequence[object], int, BaseException], None]
