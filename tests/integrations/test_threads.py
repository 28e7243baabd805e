"""Several threads write documents with fields of their own while others search: nothing is lost or torn."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from langchain_core.embeddings import DeterministicFakeEmbedding

from velo.integrations.langchain import VeloVectorStore

WRITERS, CALLS, TEXTS = 4, 25, 4


def test_writers_that_bring_fields_beside_searches(tmp_path: Path) -> None:
    store = VeloVectorStore(DeterministicFakeEmbedding(size=6), tmp_path / "s", durability="process")
    done = threading.Event()

    def write(writer: int) -> None:
        for call in range(CALLS):
            numbers = [call * TEXTS + at for at in range(TEXTS)]
            value: Any = call if call % 2 else f"call {call}"
            metadata = [{"writer": writer, f"field{call % 10}": value, "call": call} for _ in numbers]
            store.add_texts(
                [f"{writer}-{one}" for one in numbers], metadata, ids=[f"{writer}-{one}" for one in numbers]
            )
            if call % 5 == 4:
                store.delete([f"{writer}-{numbers[0]}"])

    def search() -> int:
        searches = 0
        while not done.is_set():
            for document in store.max_marginal_relevance_search("x", k=5, filter={"field3": {"$gte": 0}}):
                assert document.metadata["call"] % 10 == 3
            found = store.similarity_search("x", k=1000, filter={"writer": 1})
            calls: dict[int, int] = {}
            for document in found:
                calls[document.metadata["call"]] = calls.get(document.metadata["call"], 0) + 1
            assert set(calls.values()) <= {TEXTS - 1, TEXTS}  # of a call all texts are there, or none
            searches += 1
        return searches

    store.add_texts(["first"], [{"writer": -1, "call": 3, "field3": 7}])
    with ThreadPoolExecutor(WRITERS + 2) as pool:
        searching = [pool.submit(search) for _ in range(2)]
        for one in [pool.submit(write, writer) for writer in range(WRITERS)]:
            one.result()
        done.set()
        assert all(one.result() > 0 for one in searching)
    assert store.index is not None
    assert len(store.index) == 1 + WRITERS * (CALLS * TEXTS - CALLS // 5)
    names = [f"{writer}-{one}" for writer in range(WRITERS) for one in range(CALLS * TEXTS)]
    for document in store.get_by_ids(names):
        writer, number = map(int, (document.id or "").split("-"))
        call = number // TEXTS
        value = call if call % 2 else f"call {call}"
        assert document.metadata == {"writer": writer, "call": call, f"field{call % 10}": value}
    store.close()
