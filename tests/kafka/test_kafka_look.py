"""Looking at a broker before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tpfd.cli.main import run
from tpfd.errors import TransportError
from tpfd.examples import pipeline_text
from tpfd.transports.kafka_look import missing_topics
from tpfd.transports.kafka_settings import KafkaSettings


def test_topics_that_are_not_there_are_named_and_not_made(shared: Broker, topic: Callable[[], str]) -> None:
    there = topic()
    for _ in range(2):
        assert missing_topics(shared.settings(), [there, "looked-for"]) == ["looked-for"]
    assert missing_topics(shared.settings(), [there]) == []


@pytest.mark.parametrize("state", ["missing", "there", "away"])
def test_check_connect_says_whether_the_topics_are_there(
    shared: Broker, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpfd.transports.kafka_look.LOOK_S", 0.5)
    topics = [f"checked-{state}-{use}" for use in ("requests", "answers")]
    if state == "there":
        shared.make_topics(*topics)
    pipeline = tmp_path / "pipeline.yaml"
    transport = f"{{type: kafka, request: {{topic: {topics[0]}}}, response: {{topic: {topics[1]}}}}}"
    text = pipeline_text("restaurant-approval")
    assert "{type: interaction-api}" in text
    pipeline.write_text(text.replace("{type: interaction-api}", transport), "utf-8")
    bootstrap = "127.0.0.1:9" if state == "away" else shared.bootstrap
    setting = f"await.kafka.bootstrap={bootstrap}"
    code = run(["--output", "json", "check", "--connect", str(pipeline), "--set", setting])
    (found,) = json.loads(capsys.readouterr().out)["connections"]
    assert (code, found["ok"]) == {"missing": (1, False), "there": (0, True), "away": (1, False)}[state]
    says = {"missing": "has no topic checked-missing-answers", "there": "answers, and has", "away": "no broker"}
    assert says[state] in found["said"]


def test_a_broker_that_does_not_answer_is_named() -> None:
    nobody = KafkaSettings(bootstrap="127.0.0.1:9", client_id="test")
    with pytest.raises(TransportError, match=r"no broker at 127\.0\.0\.1:9 answers"):
        missing_topics(nobody, ["t"], within_s=0.5)
