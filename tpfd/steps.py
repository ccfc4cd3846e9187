"""What a step function may ask for besides its input.

A step function that has a parameter ``context`` gets a ``StepContext``; one that has not, gets none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO, NoReturn

from attrs import frozen

from tpfd.core.records import ExecutionId, TenantId
from tpfd.errors import NonRetryableError
from tpfd.ops.logs import Log


def no_source(path: str) -> NoReturn:
    """The `open_object` of a pipeline that has no object source.

    Raises:
        NonRetryableError: ``object_outside_source``.
    """
    raise NonRetryableError(
        f"{path} cannot be opened: the pipeline has no object source", code="object_outside_source"
    )


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
        open_object: `(path)`: open an object of the pipeline's own source for reading, by the path or URL that its
            reference has, whatever the provider. For steps that run in a thread (a plain ``def`` without ``inline``):
            it blocks. Raises NonRetryableError for what is missing or not in the source, OutsideError.
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
    open_object: Callable[[str], BinaryIO] = no_source
