"""A daemon that cannot start says what is wrong, where, and what to do; never with a traceback, always with 78."""

from __future__ import annotations

import shutil
import socket
import sqlite3
from pathlib import Path

from tests.e2e.processes import PIPELINES, configure, running, serving


async def refused(folder: Path, config: Path, **environ: str) -> str:
    """Starts a daemon that must refuse to; what it says."""
    async with running("refused", ["serve", "--config", str(config)], folder, **environ) as process:
        code = await process.ended()
        said = process.text()
        assert code == 78, said
        assert "Traceback" not in said
        return said


async def test_a_store_of_a_newer_version(tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "hold.yaml")
    async with serving(tmp_path, config) as daemon:
        assert await daemon.stop() == 0
    with sqlite3.connect(tmp_path / "tpfd.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    said = await refused(tmp_path, config)
    assert "version 99" in said
    assert "restore a backup" in said


async def test_another_program_s_database(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "tpfd.db") as connection:
        connection.execute("CREATE TABLE books (title)")
    connection.close()
    said = await refused(tmp_path, configure(tmp_path, "a", "hold.yaml"))
    assert "another program's database" in said


async def test_a_folder_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    there = {"sqlite": {"path": str(tmp_path / "nowhere" / "tpfd.db")}}
    said = await refused(tmp_path, configure(tmp_path, "a", "hold.yaml", store=there))
    assert f"the folder {tmp_path / 'nowhere'} does not exist" in said
    there = {"sqlite": {"path": "/proc/tpfd.db"}}  # which root cannot write, either
    said = await refused(tmp_path, configure(tmp_path, "a", "hold.yaml", store=there))
    assert "/proc/tpfd.db cannot be opened for writing" in said


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = await refused(tmp_path, configure(tmp_path, "a", "hold.yaml", http={"bind": address}))
    assert address in said
    assert "$.http.bind" in said


async def test_a_csv_folder_that_is_not_there(tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "example:csv-payments")
    said = await refused(tmp_path, config, CSV_FOLDER_PATH=str(tmp_path / "nowhere"))
    assert f"{tmp_path / 'nowhere'} is not a folder" in said


async def test_a34_every_misspelt_key_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "hold.yaml")
    config.write_text(config.read_text() + "\nsweep: {intervall: PT1S}\nretry: {max-retrys: 5}\ntelemtry: {}\n")
    text = config.read_text().replace("sweep:\n  interval: PT1S\n", "").replace("retry:\n  delay: 200ms\n", "")
    config.write_text(text)
    said = await refused(tmp_path, config)
    meant = {"sweep.intervall": "sweep.interval", "retry.max-retrys": "retry.max-retries", "telemtry": "telemetry"}
    for path, nearest in meant.items():
        line = next(line for line in said.splitlines() if line.rstrip().endswith(f"$.{path}"))
        assert f"nearest is {nearest} " in line
    async with running("check", ["check", "--config", str(config)], tmp_path) as process:
        assert await process.ended() == 78
        assert process.text() == said


async def test_a_pipeline_whose_function_is_not_there(tmp_path: Path) -> None:
    shutil.copy(PIPELINES / "holding.py", tmp_path)
    text = (PIPELINES / "hold.yaml").read_text()
    (tmp_path / "broken.yaml").write_text(text.replace('"holding:hold"', '"holding:hodl"'))
    said = await refused(tmp_path, configure(tmp_path, "a", str(tmp_path / "broken.yaml")))
    assert "step 'hold' has no function: holding has no hodl" in said
    assert "broken.yaml" in said
