"""Expressions, dicts and SQL text of one filter pass the same rows, in this process and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import random as stdlib_random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.filters.dresses import openai, sql, tree
from tests.long import count
from tests.serving.conftest import LIST_SIZE
from tests.serving.exact_gateway import ARROW, client_of, rows_in_arrow, serving
from velo.filters import from_dict, from_sql, to_dict
from velo_serving import open_local_backend

FILTERS = count(200, 1000, "VELO_DRESSED_FILTERS")
TOGETHER = 100
K = 5


@pytest.fixture(scope="module")
def dressed(request: pytest.FixtureRequest) -> list[tuple[Any, dict[str, Any], str]]:
    """Random filters: the tree, as a dict that has been through JSON, as SQL."""
    seed = int(os.environ.get("VELO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"VELO_TEST_SEED={seed}")
    draw = stdlib_random.Random(seed)
    found = []
    for _ in range(FILTERS):
        expr = tree(draw)
        written = (draw.random() < 0.5 and openai(expr)) or to_dict(expr)
        found.append((expr, json.loads(json.dumps(written)), sql(draw, expr)))
    return found


def test_all_syntaxes_pass_the_same_rows(
    sample_index: velo.Index, dressed: list[tuple[Any, dict[str, Any], str]]
) -> None:
    compiler = sample_index._seen().filters
    for expr, written, text in dressed:
        expected = compiler.compile(expr).matches()
        np.testing.assert_array_equal(compiler.compile(from_dict(written)).matches(), expected, str(written))
        np.testing.assert_array_equal(compiler.compile(from_sql(text)).matches(), expected, text)


def test_all_syntaxes_find_the_same(
    sample: Any, sample_path: Path, sample_index: velo.Index, dressed: list[tuple[Any, dict[str, Any], str]]
) -> None:
    async def over_http(starts: range) -> list[tuple[Any, Any]]:
        answers = []
        async with client_of(open_local_backend(sample_path, memory="20%", threads=1)) as client:
            for start in starts:
                part = dressed[start : start + TOGETHER]
                queries = sample.queries[: len(part)]
                options: dict[str, Any] = {"k": K, "list_size": LIST_SIZE}
                answers.append(
                    (
                        await client.search(queries, filters=[one for _, one, _ in part], **options),
                        await client.search(queries, filters=[text for _, _, text in part], **options),
                    )
                )
        return answers

    starts = range(0, len(dressed), TOGETHER)
    remote = asyncio.run(over_http(starts))
    empty = full = 0
    for start, answers in zip(starts, remote, strict=True):
        part = dressed[start : start + TOGETHER]
        queries = sample.queries[: len(part)]
        local = sample_index.search(queries, K, filter=[expr for expr, _, _ in part], list_size=LIST_SIZE)
        texts = sample_index.search(
            queries, K, filter=[from_sql(text) for _, _, text in part], list_size=LIST_SIZE
        )
        np.testing.assert_array_equal(texts.ids, local.ids)
        for answer in answers:
            np.testing.assert_array_equal(answer.counts, local.counts)
            np.testing.assert_array_equal(answer.ids, local.ids)
        empty += int((local.counts == 0).sum())
        full += int((local.counts == K).sum())
    assert empty < len(dressed) / 2 < full + empty  # the filters are neither all empty nor all odd


def test_errors_in_sql_have_a_position(sample_path: Path) -> None:
    async def run() -> list[tuple[int, dict[str, Any]]]:
        told = []
        async with serving(open_local_backend(sample_path, memory="20%", threads=1)) as client:
            for condition in (
                "price < 0.5 AND",
                "price < 0.5 AND\n colour = 1",
                "price = 'x'",
                "price; DROP x",
            ):
                body = {"vector": [0.0] * 128, "filter": condition}
                answer = await client.post("/v1/search", json=body)
                told.append((answer.status_code, answer.json()["error"]))
            zeros = rows_in_arrow(np.zeros((1, 128), np.float32))
            for text, status in (
                ("price < 0.5 AND brand LIKE 'brand0%'", 200),
                ('{"price": {"$lt": 0.5}}', 200),
            ):
                answer = await client.post(
                    "/v1/search", content=zeros, headers=ARROW, params={"filter": text, "k": 3}
                )
                assert answer.status_code == status, answer.text
        return told

    told = asyncio.run(run())
    assert [status for status, _ in told] == [400] * 4
    assert [error["type"] for _, error in told] == [
        "FilterError",
        "UnknownColumnError",
        "FilterTypeError",
        "FilterError",
    ]
    assert [error["position"] for _, error in told] == [
        {"path": "filter", "line": 1, "column": 13},
        {"path": "filter", "line": 2, "column": 2},
        {"path": "filter", "line": 1, "column": 1},
        {"path": "filter", "line": 1, "column": 6},
    ]
