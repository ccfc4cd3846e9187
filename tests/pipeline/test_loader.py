"""Loading a definition: what it becomes, and every problem at once with its path and line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tpfd.errors import ConfigError, NotFound
from tpfd.pipeline.loader import load_pipeline
from tpfd.pipeline.model import (
    AfterIngest,
    Cardinality,
    Correlation,
    DuplicatePolicy,
    ObjectFormat,
    OnExisting,
    Parallelism,
    Pipeline,
    StepKind,
)

Load = Callable[..., Pipeline]
Problems = Callable[..., list[str]]

STEPS = """
steps:
  - {name: Check Order, input: Order, output: Order, python: "m:check"}
  - name: Await Decision
    kind: await
    input: Order
    output: Decision
    timeout: PT30M
    idempotencyKeyFields: [orderId]
    await: {transport: {type: interaction-api}}
  - {name: Close Order, input: Decision, output: Done, python: "m:close", terminal: true}
"""


def test_a_definition_becomes_a_pipeline(load: Load) -> None:
    pipeline = load(STEPS)
    assert pipeline.pipeline_id == "order-desk"
    assert pipeline.version == 3
    assert [step.step_id for step in pipeline.steps] == ["check-order", "await-decision", "close-order"]
    assert [step.index for step in pipeline.steps] == [0, 1, 2]
    waiting = pipeline.steps[1]
    assert waiting.kind is StepKind.AWAIT
    assert waiting.await_spec is not None
    assert waiting.await_spec.timeout_ms == 1_800_000
    assert waiting.await_spec.correlation is Correlation.INTERACTION_ID
    assert waiting.idempotency_fields == ("orderId",)
    assert (pipeline.input_type, pipeline.output_type) == ("Order", "Done")
    assert pipeline.unused_keys == ()


@pytest.mark.parametrize("name", ["await-decision", "Await Decision", "ProcessAwaitDecisionService"])
def test_a_step_answers_to_three_names(load: Load, name: str) -> None:
    assert load(STEPS).step(name).index == 1


def test_a_name_that_begins_with_process_is_not_said_twice(load: Load) -> None:
    step = load('steps: [{name: Process Order, input: Order, output: Done, python: "m:f"}]').steps[0]
    assert step.answers_to("ProcessOrderService")
    assert not step.answers_to("OrderService")


def test_an_unknown_step_is_named_with_the_known_ones(load: Load) -> None:
    with pytest.raises(NotFound, match=r"'close'; it has: check-order, await-decision, close-order"):
        load(STEPS).step("close")
    with pytest.raises(NotFound, match="it has: await-decision"):
        load(STEPS).await_step("close-order")


def test_everything_a_step_can_say(load: Load) -> None:
    pipeline = load(
        """
steps:
  - name: Split
    cardinality: EXPANSION
    input: Order
    output: Order
    python: m.inner:split
    timeout: 30s
    parallelism: sequential
    maxConcurrency: 4
    backpressureBufferCapacity: 16
    recoverOnFailure: true
    retry: {limit: 5, wait: 500ms, maxBackoff: PT1M}
  - {name: Tell, cardinality: SIDE_EFFECT, input: Order, python: "m:tell", inline: true}
  - {name: Join, cardinality: REDUCTION, input: Order, output: Done, python: "m:join"}
"""
    )
    split, tell, join = pipeline.steps
    assert split.cardinality is Cardinality.ONE_TO_MANY
    assert (split.timeout_ms, split.max_concurrency, split.buffer_capacity) == (30_000, 4, 16)
    assert split.parallelism is Parallelism.SEQUENTIAL
    assert split.recover_on_failure is True
    assert (split.retry.limit, split.retry.wait_ms, split.retry.max_backoff_ms) == (5, 500, 60_000)
    assert tell.output_type == "Order"
    assert tell.inline
    assert join.cardinality is Cardinality.MANY_TO_ONE


def test_everything_an_await_can_say(load: Load) -> None:
    spec = (
        load(
            """
steps:
  - name: Ask
    kind: await
    input: Order
    output: Decision
    await:
      timeout: PT1H
      correlation: {strategy: signedResumeToken}
      transport: {type: webhook, request: {url: "https://example.org/${NAME}"}, headers: {x: y}}
      assignee: ann
      group: desk
      remindAfter: PT10M
      escalateTo: bob
      escalateAfter: PT20M
      onTimeout: {complete-with: {declined: {orderId: 1, reason: late}}}
      completion: {type: com.example.Done, projector: "m:project"}
""",
            {"NAME": "hook"},
        )
        .steps[0]
        .await_spec
    )
    assert spec is not None
    assert spec.correlation is Correlation.SIGNED_RESUME_TOKEN
    assert spec.settings == {"request": {"url": "https://example.org/hook"}, "headers": {"x": "y"}}
    assert (spec.assignee, spec.group, spec.escalate_to) == ("ann", "desk", "bob")
    assert (spec.timeout_ms, spec.remind_after_ms, spec.escalate_after_ms) == (3_600_000, 600_000, 1_200_000)
    assert spec.on_timeout == {"declined": {"orderId": 1, "reason": "late"}}
    assert (spec.completion_type, spec.projector) == ("Done", "m:project")


def test_command_steps_and_connectors(load: Load) -> None:
    pipeline = load(
        """
connectors: {bank: {provider: http, version: 1, config: {url: "https://example.org"}}}
steps:
  - name: Pay
    kind: command
    operation: pay
    using: bank
    input: Order
    output: Done
    commandIdGenerator: m:command_id
    duplicatePolicy: FAIL
    config: {a: 1}
    python: m:pay
"""
    )
    command = pipeline.steps[0].command
    assert command is not None
    assert (command.operation, command.using, command.id_generator) == ("pay", "bank", "m:command_id")
    assert command.duplicate_policy is DuplicatePolicy.FAIL
    assert command.config == {"a": 1}
    assert pipeline.connectors["bank"].provider == "http"


OBJECTS = """
sources:
  inbox:
    kind: object
    provider: filesystem
    location: {root: "${FOLDER:-in}", prefix: ""}
    filter: {include: ["*.csv"], exclude: ["old*"]}
    poll: {enabled: true, interval: PT10S, batchSize: 7}
    identity: {fields: [key, etag]}
    payload: {mode: text, maxBytes: 1024, charset: UTF-8}
    after: {move: done}
input: {from: inbox, emits: {type: com.example.Order, typeName: Order, mapper: com.example.OrderMapper}}
publish:
  outbox:
    kind: object
    provider: s3
    location: {bucket: b, prefix: out/, region: eu-west-1}
    naming: {keyTemplate: "{inputName}-{date}.csv"}
    payload: {contentType: text/csv}
    grouping: {maxOpenGroups: 2}
    onExisting: replace
output: {to: outbox, consumes: {typeName: Done, python: "m:row"}}
search: {order: orderId}
"""


def test_objects_in_and_out(load: Load) -> None:
    pipeline = load(STEPS + OBJECTS, {"FOLDER": "/data"})
    source, target = pipeline.sources["inbox"], pipeline.publish["outbox"]
    assert (source.root, source.include, source.exclude) == ("/data", ("*.csv",), ("old*",))
    assert (source.poll_interval_ms, source.batch_size, source.identity_fields) == (10_000, 7, ("key", "etag"))
    assert (source.after, source.move_to) == (AfterIngest.MOVE, "done")
    assert source.settings == {"maxBytes": 1024, "charset": "UTF-8"}
    assert (target.root, target.prefix, target.settings) == ("b", "out/", {"region": "eu-west-1"})
    assert (target.format, target.content_type) == (ObjectFormat.CSV, "text/csv")
    assert target.on_existing is OnExisting.REPLACE
    assert pipeline.input is not None
    assert (pipeline.input.source, pipeline.input.type_name, pipeline.input.mapper) == ("inbox", "Order", None)
    assert pipeline.output is not None
    assert (pipeline.output.target, pipeline.output.mapper) == ("outbox", "m:row")
    assert pipeline.search == {"order": "orderId"}
    assert pipeline.unused_keys == ("$.input.emits.type", "$.input.emits.mapper")


def test_numbers_and_switches_may_come_from_the_environment(load: Load) -> None:
    text = 'steps: [{name: S, input: Order, output: Done, maxConcurrency: "${N}", terminal: "${T:-true}"}]'
    step = load(text, {"N": "7"}).steps[0]
    assert (step.max_concurrency, step.terminal) == (7, True)


def test_free_settings_hold_plain_text(load: Load) -> None:
    step = "{name: S, kind: await, input: Order, output: Done, timeout: PT5M, await: {transport: %s, onTimeout: %s}}"
    transport, value = (
        '{type: webhook, request: {url: "${URL}", list: ["${URL}"]}}',
        '{complete-with: {outcome: "${URL}"}}',
    )
    spec = load(f"steps: [{step % (transport, value)}]", {"URL": "u"}).steps[0].await_spec
    assert spec is not None
    assert spec.settings == {"request": {"url": "u", "list": ["u"]}}
    request = spec.settings["request"]
    assert isinstance(request, dict)
    assert type(request["url"]) is str
    assert isinstance(spec.on_timeout, dict)
    assert type(spec.on_timeout["outcome"]) is str


def test_quoted_numbers_in_the_file_stay_text(problems: Problems) -> None:
    text = 'steps: [{name: S, input: Order, output: Done, python: "m:f", maxConcurrency: "7"}]'
    assert problems(text) == ["a whole number is needed here, not the text '7' @ $.steps[0].maxConcurrency"]


def test_bindings_outside_the_file_win(load: Load) -> None:
    pipeline = load(STEPS, bindings={"ProcessCheckOrderService": "other:check", "close-order": "other:close"})
    assert [step.python for step in pipeline.steps] == ["other:check", None, "other:close"]


def test_a_binding_for_nothing_is_refused(problems: Problems) -> None:
    found = problems(STEPS, bindings={"chek-order": "m:f", "close-order": "no reference"})
    assert found == [
        "bindings name the step 'chek-order', which is not here; did you mean 'check-order'? @ $.steps",
        "binding of 'close-order': 'no reference' is not module:function @ $.steps",
    ]


def test_every_problem_is_listed_with_its_nearest_name(problems: Problems) -> None:
    found = problems(
        """
aspect: {}
searches: {}
steps:
  - {nam: Check, input: Order, output: Done}
  - {name: Two, inptu: Order, output: Don, python: "m:f"}
  - {name: Three, input: Order, output: Done, cardinality: ONE_TO_MANNY, terminal: yes, timeout: 5, python: nowhere}
"""
    )
    assert found == [
        (
            "unknown key 'aspect'; known here: appName, connectors, contract, input, messages, output, platform, "
            "publish, python, search, sources, steps, transport, types, unions, version @ $.aspect"
        ),
        "unknown key 'searches'; did you mean 'search'? @ $.searches",
        "unknown key 'nam'; did you mean 'name'? @ $.steps[0].nam",
        "'name' is missing @ $.steps[0]",
        "unknown key 'inptu'; did you mean 'input'? @ $.steps[1].inptu",
        "'input' is missing: name one of the declared types @ $.steps[1]",
        "type 'Don' is not declared; did you mean 'Done'? @ $.steps[1].output",
        (
            "'ONE_TO_MANNY' is not one of ONE_TO_ONE, ONE_TO_MANY, MANY_TO_ONE, MANY_TO_MANY, SIDE_EFFECT; "
            "did you mean 'ONE_TO_MANY'? @ $.steps[2].cardinality"
        ),
        "true or false is needed here, not the text 'yes' @ $.steps[2].terminal",
        "5 has no unit: write PT5S for seconds or 5ms for milliseconds @ $.steps[2].timeout",
        "'nowhere' is not a Python reference; write module:function @ $.steps[2].python",
    ]


def test_a_problem_names_file_and_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_pipeline("version: 3\nappName: a\nsteps:\n  - name: S\n    input: X\n    output: X\n", "dir/p.yaml", {})
    assert caught.value.problems[0].message.startswith("dir/p.yaml:5: type 'X' is not declared")


def test_an_unset_name_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_pipeline("version: 3\nappName: ${APP}\n", "p.yaml", {})
    assert [str(one) for one in caught.value.problems] == [
        "p.yaml:2: environment variable APP is not set; set it, or write ${APP:-default} @ $.appName"
    ]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("", "a pipeline has at least one step @ $.steps"),
        ("steps: {}", "a list is needed here, not a mapping @ $.steps"),
        ("steps: [5]", "a mapping is needed here, not the number 5 @ $.steps[0]"),
        ("steps: [{name: S, kind: await, input: Order, output: Done}]", "an await step needs 'await:"),
        (
            "steps: [{name: S, kind: await, input: Order, output: Done, await: {transport: {type: pigeon}}}]",
            "'pigeon' is not a transport",
        ),
        (
            "steps: [{name: S, kind: await, input: Order, output: Done, await: {transport: {type: sqs}}}]",
            "an await needs a timeout",
        ),
        (
            (
                "steps: [{name: S, kind: await, input: Order, output: Done, timeout: PT5M, python: 'm:f', "
                "await: {transport: {type: sqs}}}]"
            ),
            "an await step calls no function",
        ),
        (
            "steps: [{name: S, input: Order, output: Done, await: {transport: {type: sqs}, timeout: PT5M}}]",
            "write 'kind: await', or what the function gives",
        ),
        (
            (
                "steps: [{name: S, kind: await, input: Order, output: Done, timeout: PT5M, "
                "await: {transport: {type: sqs}, remindAfter: PT5M}}]"
            ),
            "must be shorter than the timeout",
        ),
        (
            (
                "steps: [{name: S, kind: await, input: Order, output: Done, timeout: PT5M, "
                "await: {transport: {type: sqs}, escalateTo: bob}}]"
            ),
            "belong together",
        ),
        ("steps: [{name: S, kind: query, input: Order, output: Done}]", "query steps are not supported"),
        ("steps: [{name: S, pipeline: other, input: Order, output: Done}]", "nested pipelines are not supported"),
        ("steps: [{name: S, kind: command, input: Order, output: Done}]", "'command', or 'operation' with 'using'"),
        (
            "steps: [{name: S, kind: command, operation: o, using: u, input: Order, output: Done}]",
            "connector 'u' is not configured",
        ),
        (
            "steps: [{name: S, kind: command, command: c, cardinality: ONE_TO_MANY, input: Order, output: Done}]",
            "a command step is ONE_TO_ONE",
        ),
        ("steps: [{name: S, input: Order, output: Done}, {name: s, input: Done, output: Done}]", "have the id 's'"),
        ("steps: [{name: '!', input: Order, output: Done}]", "has no letter or digit"),
        (
            "steps: [{name: S, input: Order, output: Done, idempotencyKeyFields: [orderid]}]",
            "Order has no field 'orderid'; did you mean 'orderId'? @ $.steps[0].idempotencyKeyFields[0]",
        ),
        ("steps: [{name: S, input: Order, output: Done, inline: true, process: true}]", "inline or in a process"),
        (
            "steps: [{name: S, cardinality: SIDE_EFFECT, input: Order, output: Done}]",
            "a SIDE_EFFECT step gives what it takes",
        ),
        (
            "steps: [{name: S, input: Order, output: Done, idempotencyKeyFields: [orderId, orderId]}]",
            "'orderId' stands here twice @ $.steps[0].idempotencyKeyFields[1]",
        ),
        ("search: {a: nothing}" + STEPS, "the input has no field 'nothing'"),
        ("input: {subscription: {publication: x}}" + STEPS, "not chained by subscription"),
        ("output: {checkpoint: {publication: x}}" + STEPS, "not chained by checkpoint"),
        ("platform: FUNCTION" + STEPS, "a way to package the Java runtime"),
        ("transport: SOAP" + STEPS, "'SOAP' is not a transport"),
        ("contract: {output: Order}" + STEPS, "the last step gives Done, not Order"),
        ("python: {types: {Decision: 'm:D'}}" + STEPS, "'Decision' is not a record of this file"),
        ("python: {types: {Order: nope}}" + STEPS, "'nope' is not a Python reference"),
    ],
)
def test_what_does_not_make_sense_is_refused(problems: Problems, rest: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(rest)), problems(rest)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("provider: filesystem", "provider: ftp", "'ftp' is not a provider"),
        ("from: inbox", "from: inbix", "'inbix' is not in sources; did you mean 'inbox'?"),
        ("to: outbox", "to: out", "'out' is not in publish"),
        ("typeName: Order", "typeName: Done", "emits Done, but the first step takes Order"),
        ("typeName: Done", "typeName: Order", "consumes Order, but the last step gives Done"),
        ("{inputName}", "{inputname}", "{inputname} stands for nothing; did you mean 'inputName'?"),
        ("{inputName}", "{inputName", "a brace is not closed or not opened"),
        ("after: {move: done}", "after: move", "say where to"),
        ("after: {move: done}", "after: burn", "'burn' is not one of keep, delete, move"),
        ("fields: [key, etag]", "fields: [key, colour]", "'colour' tells nothing about an object"),
        ("interval: PT10S", "interval: 10", "10 has no unit"),
        ("mode: text", "mode: smoke", "'smoke' is not one of"),
        ("bucket: b, ", "", "'bucket' is missing"),
        ("batchSize: 7", "batchSize: 0", "must be 1 or more"),
    ],
)
def test_objects_that_do_not_make_sense_are_refused(problems: Problems, old: str, new: str, expected: str) -> None:
    assert old in OBJECTS
    assert any(expected in problem for problem in problems(STEPS + OBJECTS.replace(old, new)))


def test_nine_search_keys_are_one_too_many(problems: Problems) -> None:
    keys = ", ".join(f"k{number}: orderId" for number in range(9))
    assert problems(f"search: {{{keys}}}" + STEPS) == ["at most 8 search keys, not 9 @ $.search"]


def test_the_contract_version_changes_with_the_contract_only(load: Load) -> None:
    base = load(STEPS).contract_version
    assert load(STEPS + "search: {a: orderId}").contract_version == base
    assert load(STEPS.replace("PT30M", "PT5M")).contract_version == base
    assert load(STEPS.replace("m:check", "m:other")).contract_version == base
    assert load(STEPS.replace("Close Order", "Finish Order")).contract_version != base
    head = "version: 3\nappName: x\ntypes: {Order: {fields: [[orderId, uuid], [%s, decimal]]}}\n"
    one = 'steps: [{name: S, input: Order, output: Order, python: "m:f"}]'
    assert load(one, head=head % "amount").contract_version != load(one, head=head % "amount?").contract_version


CONTRACT = """version: 3
appName: x
types:
  Amount: {wraps: decimal, minimum: 1}
  Money: {alias: Amount}
  Order: {fields: [[orderId, uuid], [amount, Money]]}
  Yes: {fields: [[note, string]]}
  No: {fields: [[why, string]]}
  Decision: {variants: {yes: Yes, no: No}}
  Reply: {fields: [[text, string]]}
steps:
  - {name: Check, input: Order, output: Order, python: "m:check"}
  - {name: Ask, kind: await, input: Order, output: Decision, timeout: PT1M,
     await: {transport: {type: interaction-api}, completion: {type: Reply, projector: "m:project"}}}
  - {name: Close, input: Decision, output: Yes, python: "m:close", terminal: true}
"""


def test_the_contract_version_is_the_same_in_every_release() -> None:
    """Executions in flight carry it: were it computed in another way, no daemon would take them up after an upgrade."""
    assert version_of(CONTRACT) == "17512c0ffa2d3b62483573b2748d8f330f72a4cb58b1f816842b203dfd2baadd"


def version_of(text: str) -> str:
    return load_pipeline(text, "x.yaml", {}).contract_version


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("appName: x", "# a comment\nappName: x"),
        ("minimum: 1}", "minimum: 1.0}"),
        ("Amount: {wraps: decimal, minimum: 1}", "Amount: {minimum: 1, wraps: decimal}"),
        ("  Yes: {fields: [[note, string]]}\n  No: {fields: [[why, string]]}",
         "  No: {fields: [[why, string]]}\n  Yes: {fields: [[note, string]]}"),
        ("amount, Money", "amount, Amount"),
        ("Money", "Cash"),
        ("types:\n", "types:\n  Unused: {fields: [[a, string]]}\n"),
        ("{yes: Yes, no: No}", "{no: No, yes: Yes}"),
        ("m:check", "m:other"),
        ("m:project", "m:other"),
        ("PT1M", "PT2M"),
        ("{type: interaction-api}", "{type: websocket}"),
        ("output: Order, python", "parallelism: SEQUENTIAL, output: Order, python"),
    ],
)  # fmt: skip
def test_what_may_change_under_executions_in_flight(old: str, new: str) -> None:
    assert old in CONTRACT
    assert version_of(CONTRACT.replace(old, new)) == version_of(CONTRACT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("minimum: 1}", "minimum: 2}"),
        ("wraps: decimal", "wraps: int64"),
        ("[orderId, uuid], [amount, Money]", "[amount, Money], [orderId, uuid]"),
        ("orderId, uuid", "orderId, string"),
        ("[amount, Money]", "[amount, Money], [more, string]"),
        ("[note, string]", "{name: note, repeated: string}"),
        ("no: No}", "never: No}"),
        ("Reply: {fields: [[text, string]]}", "Reply: {fields: [[text, int64]]}"),
        ("name: Check", "name: Look"),
        ("input: Order, output: Order, python", "cardinality: ONE_TO_MANY, input: Order, output: Order, python"),
        ("steps:\n", 'steps:\n  - {name: First, input: Order, output: Order, python: "m:f"}\n'),
        ("Yes", "Yea"),
    ],
)
def test_what_is_another_contract(old: str, new: str) -> None:
    assert old in CONTRACT
    assert version_of(CONTRACT.replace(old, new)) != version_of(CONTRACT)


def test_the_version_of_the_language_must_be_known(problems: Problems) -> None:
    rest = 'steps: [{name: S, input: A, output: A, python: "m:f"}]\ntypes: {A: {fields: [[a, string]]}}\n'
    assert problems(rest, head="version: 1\nappName: x\n") == [
        "version 1 of the template language is not known; 2 and 3 are @ $.version"
    ]
    assert problems(rest, head="appName: x\n") == [
        "'version' is missing; write 'version: 3' (2 is read too, 1 is not) @ $"
    ]
    assert problems(rest, head="version: 2\n") == ["'appName' is missing @ $"]
    assert problems(rest, head="version: 2\nappName: '-'\n") == [
        "'-' has no letter or digit to make an id of @ $.appName"
    ]


def test_omitted_inputs_follow_the_contract(load: Load) -> None:
    pipeline = load(
        """
contract: {input: Order, output: Done}
steps:
  - {name: A, output: Order, python: "m:f"}
  - {name: B, output: Done, python: "m:f"}
"""
    )
    assert [step.input_type for step in pipeline.steps] == ["Order", "Order"]


def test_an_input_is_never_guessed_across_a_union(problems: Problems) -> None:
    rest = """
steps:
  - {name: A, input: Order, output: Decision, python: "m:f"}
  - {name: B, output: Done, python: "m:f"}
"""
    assert problems(rest) == ["'input' is missing: name one of the declared types @ $.steps[1]"]
