"""The web page: it comes with everything it needs, and can reach nothing but us."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

import httpx

from tpfd.http.app import ROUTES

HTML = files("tpfd.http.console").joinpath("console.html").read_text(encoding="utf-8")


async def test_the_policy_allows_only_what_the_page_has_inline(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["x-content-type-options"] == "nosniff"
    policy = page.headers["content-security-policy"]
    for element in ("script", "style"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    for directive in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert directive in policy
    assert "unsafe" not in policy


def test_the_page_needs_nothing_from_elsewhere() -> None:
    assert not re.findall(r"https?://", HTML)
    assert not re.findall(r"<(script|link|img|iframe)[^>]*(src|href)=\"(?!data:)", HTML)
    assert not re.findall(r"\son\w+=\"", HTML)  # the policy would not run it


def test_answers_never_become_markup() -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in HTML


def test_every_control_has_a_label_and_every_column_a_head() -> None:
    for control in re.findall(r"<(?:input|select) id=\"(\w+)\"", HTML):
        assert re.search(rf"<label[^>]*>(?:(?!</label>).)*id=\"{control}\"", HTML, re.DOTALL), control
    assert len(re.findall("<th ", HTML)) == len(re.findall('<th scope="col"', HTML))


def test_the_page_calls_only_paths_that_are_there() -> None:
    templates = {re.sub(r"{\w+}", "X", route.template) for route in ROUTES}
    called = {"/q/health/ready", "/pipeline/overview", "/pipeline/interactions/complete"}
    called |= set(re.findall(r"`(/pipeline/\w+(?:/\w+)*)\?", HTML))
    assert {"/pipeline/interactions/pending", "/pipeline/executions"} <= called
    for path in called:
        assert path in HTML
        assert path in templates
    for suffix in ("history", "late", "result", "cancel"):
        assert f"/{suffix}" in HTML
        assert f"/pipeline/executions/X/{suffix}" in templates
    assert "/tpf/admin/tenants/X/executions/redrive" in templates
