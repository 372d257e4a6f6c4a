"""The OpenAPI document: what is in docs, what is served, and what a fuzzer makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from swarmd.core.events import Event
from swarmd.observe.narrative.describe import WORDS
from swarmd.web.views.overview import CALM, LANES, TYPES
from tests.web.serving import CHAIN, Served, copy_of, served

DOCUMENT = Path(__file__).parents[3] / "docs" / "openapi.json"
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
UNWELL = ("/livez", "/readyz", "/productivez")  # say with 503 that the node is not well
EXAMPLES = 12
MEND = "run `python -m swarmd.web.http.openapi docs/openapi.json`"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(copy_of(CHAIN, tmp_path_factory.mktemp("openapi"))) as running:
        yield running


def test_the_document_in_docs_is_the_one_that_is_served(server: Served) -> None:
    assert json.loads(DOCUMENT.read_bytes()) == server.json("/api/openapi.json"), MEND


def document() -> Any:
    return json.loads(DOCUMENT.read_bytes())


schema = schemathesis.openapi.from_dict(document()).exclude(path="/api/v1/stream")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_a_fuzzer_finds_no_answer_that_the_document_does_not_know(case: Any, server: Served) -> None:
    response = case.call(base_url=server.url)
    checks = [check for check in CHECKS if check is not not_a_server_error or case.path not in UNWELL]
    case.validate_response(response, checks=checks)
    assert response.status_code < 500 or case.path in UNWELL


def test_every_event_type_has_a_lane_and_calm_ones_never_warn() -> None:
    assert set(TYPES) == {str(kind.__struct_config__.tag) for kind in get_args(Event)}
    assert set(TYPES.values()) == set(LANES)
    assert {WORDS[kind].level for kind in CALM} <= {"info", "debug"}
