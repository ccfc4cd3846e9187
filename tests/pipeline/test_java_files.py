"""Definitions in the shapes that files for the Java runtime have."""

from __future__ import annotations

from collections.abc import Callable

from tpfd.pipeline.declarations import RecordDecl
from tpfd.pipeline.model import Cardinality, Pipeline, StepKind
from tpfd.pipeline.routing import routes

Load = Callable[..., Pipeline]

OLD_DIALECT = """
version: 2
appName: invoice-desk
basePackage: com.example.invoice
transport: GRPC
platform: COMPUTE
runtimeLayout: modular
aspects:
  persistence: {enabled: true, scope: STEPS, position: AFTER_STEP, config: {targetSteps: [ProcessReadFolderService]}}
messages:
  Folder:
    fields:
      - {number: 1, name: path, type: path}
  Invoice:
    reserved: {numbers: [9]}
    fields:
      - {number: 1, name: id, type: uuid, comment: "the id", since: "1.0"}
      - {number: 2, name: total, type: decimal, overrides: {proto: {encoding: string}}}
      - {number: 3, name: note, type: string, optional: true}
      - {number: 4, name: lines, type: Line, repeated: true}
  Line:
    fields: [[1, sku, string], [2, count, int32]]
  Paid: {fields: [[1, id, uuid]]}
  Refused: {fields: [[1, id, uuid], [2, reason, string]]}
  Outcome: {fields: [[1, id, uuid]]}
unions:
  Verdict:
    variants:
      paid: {type: Paid, number: 1}
      refused: {type: Refused, number: 2}
steps:
  - name: Process Read Folder
    service: com.example.invoice.service.ProcessReadFolderService
    cardinality: EXPANSION
    input: com.example.invoice.domain.Folder
    inputTypeName: Folder
    inboundMapper: com.example.invoice.mapper.FolderMapper
    output: com.example.invoice.domain.Invoice
    outputTypeName: Invoice
    outboundMapper: com.example.invoice.mapper.InvoiceMapper
  - name: Await Bank
    kind: await
    cardinality: ONE_TO_ONE
    input: com.example.invoice.domain.Invoice
    output: com.example.invoice.domain.Verdict
    outputTypeName: Verdict
    timeout: PT5M
    idempotencyKeyFields: ["id", "total"]
    await:
      correlation: {strategy: signedResumeToken}
      transport:
        type: kafka
        request: {topic: bank.requests, key: correlationId}
        response: {topic: bank.results}
        consumer: {group: invoice}
  - name: Finish
    operator: com.example.invoice.Finisher::finish
    cardinality: ONE_TO_ONE
    inputTypeName: Verdict
    accepts: [Paid, Refused]
    outputTypeName: Outcome
    terminal: true
    runOnVirtualThreads: true
"""

DEFERRED = """
version: 3
appName: Shop
basePackage: com.example.shop
types:
  Request: {fields: [[requestId, uuid]], java: com.example.Request}
  Question:
    fields: [[orderId, uuid], ["hint?", string]]
    mappings: {persistence: {type: com.example.Q, mapper: com.example.M}}
  Yes: {fields: [[orderId, uuid]]}
  No: {fields: [[orderId, uuid]]}
  Answer: {variants: {yes: Yes, no: No}}
  Result: {fields: [[orderId, uuid]]}
steps:
  - name: Create Question
    service: com.example.ProcessCreateQuestionService
    cardinality: ONE_TO_MANY
    input: Request
    output: Answer
    java: {input: com.example.Request, output: com.example.Answer}
    parallelism: SEQUENTIAL
    await:
      operationOutput: {type: Question, java: com.example.Question}
      timeout: PT30M
      idempotency: {fields: [orderId]}
      correlation: {strategy: interactionId}
      transport: {type: interaction-api}
  - {name: Finish, service: com.example.F, input: Answer, output: Result, terminal: true}
"""


def test_the_old_dialect_loads(load: Load) -> None:
    pipeline = load(OLD_DIALECT, head="")
    assert pipeline.pipeline_id == "invoice-desk"
    assert [step.step_id for step in pipeline.steps] == ["process-read-folder", "await-bank", "finish"]
    assert [step.input_type for step in pipeline.steps] == ["Folder", "Invoice", "Verdict"]
    spec = pipeline.steps[1].await_spec
    assert spec is not None
    assert spec.settings["request"] == {"topic": "bank.requests", "key": "correlationId"}
    invoice = pipeline.types.declarations["Invoice"]
    assert isinstance(invoice, RecordDecl)
    assert [(one.name, one.type_name, one.optional, one.repeated) for one in invoice.fields] == [
        ("id", "uuid", False, False),
        ("total", "decimal", False, False),
        ("note", "string", True, False),
        ("lines", "Line", False, True),
    ]
    assert pipeline.types.variants("Verdict") == {"paid": "Paid", "refused": "Refused"}


def test_keys_of_the_java_side_are_listed_as_not_used(load: Load) -> None:
    unused = load(OLD_DIALECT, head="").unused_keys
    for path in (
        "$.basePackage",
        "$.aspects",
        "$.runtimeLayout",
        "$.transport",
        "$.platform",
        "$.messages.Invoice.reserved",
        "$.messages.Invoice.fields[0].comment",
        "$.steps[0].service",
        "$.steps[0].inboundMapper",
        "$.steps[0].input",
        "$.steps[2].operator",
    ):
        assert path in unused
    assert "$.steps[1].input" not in unused


def test_a_step_that_is_completed_later_is_a_function_and_an_await(load: Load) -> None:
    pipeline = load(DEFERRED, head="")
    create, waiting, finish = pipeline.steps
    assert (create.kind, create.cardinality) == (StepKind.SERVICE, Cardinality.ONE_TO_MANY)
    assert (create.input_type, create.output_type) == ("Request", "Question")
    assert (waiting.kind, waiting.cardinality) == (StepKind.AWAIT, Cardinality.ONE_TO_ONE)
    assert (waiting.input_type, waiting.output_type) == ("Question", "Answer")
    assert waiting.step_id == "await-create-question"
    assert waiting.idempotency_fields == ("orderId",)
    assert waiting.await_spec is not None
    assert waiting.await_spec.timeout_ms == 1_800_000
    assert [step.index for step in pipeline.steps] == [0, 1, 2]
    assert routes(pipeline).takes(finish, "Yes")


def test_a_terminal_step_that_is_completed_later_ends_with_its_await(load: Load) -> None:
    text = DEFERRED.replace("    parallelism: SEQUENTIAL", "    terminal: true").split("  - {name: Finish")[0]
    create, waiting = load(text, head="").steps
    assert (create.terminal, waiting.terminal) == (False, True)


def test_such_an_await_is_found_by_the_authored_names_too(load: Load) -> None:
    pipeline = load(DEFERRED, head="")
    for name in ("create-question", "Create Question", "ProcessCreateQuestionService", "await-create-question"):
        assert pipeline.await_step(name).index == 1
    assert pipeline.step("create-question").index == 0
