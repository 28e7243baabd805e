"""Bodies of answers: JSON and Arrow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic_core import to_json

from velo_serving.gateway.bodies import JSON
from velo_serving.protocol.errors import NotAcceptableError
from velo_serving.protocol.hits import ROWS_AT_ONCE, costs_of, is_hit, joined, plain
from velo_serving.protocol.types import Answer
from velo_serving.transport.codec import stream_of


def choose_type(accept: str | None, offered: Sequence[str]) -> str:
    preferences: list[tuple[float, int, str]] = []
    for place, part in enumerate((accept or "*/*").split(",")):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if quality > 0:
            preferences.append((-quality, place, name))
    for _, _, name in sorted(preferences):
        media_type = offered[0] if name in ("*/*", "application/*") else name
        if media_type in offered:
            return media_type
    raise NotAcceptableError(f"none of {accept!r} can be written here, only {', '.join(offered)}")


def encoded(answer: Answer, took_ms: float, media_type: str) -> bytes:
    return _to_json(answer, took_ms) if media_type == JSON else _to_arrow(answer, took_ms)


def _status(answer: Answer, took_ms: float) -> dict[str, Any]:
    status: dict[str, Any] = {
        "took_ms": round(took_ms, 3),
        "shards_answered": answer.shards_answered,
        "shards_total": answer.shards_total,
        "partial": answer.partial,
        "stats": costs_of([answer.hits]),
    }
    if answer.version:
        status["version"] = answer.version
    if answer.hits.limited is not None:
        status["limited"] = answer.hits.limited.tolist()
    if answer.failures:
        status["failures"] = [one.to_dict() for one in answer.failures]
    return status


def _to_json(answer: Answer, took_ms: float) -> bytes:
    hits = answer.hits
    counts = hits.counts.tolist()
    fields = {"ids": hits.ids, "distances": hits.distances, "vectors": hits.vectors, "scores": hits.scores}
    rest: dict[str, Any] = {"counts": counts}
    if hits.groups is not None:
        rest["groups"] = [[{"value": _plain(value), "size": n} for value, n in row] for row in hits.groups]
    pieces = [
        b'"%s":[%s]' % (name.encode(), b",".join(map(_list, rows, counts)))
        for name, rows in fields.items()
        if rows is not None
    ]
    if hits.metadata is not None:
        pieces.append(b'"metadata":[%s]' % b",".join(map(_rows, hits.metadata)))
    return b"{%s,%s" % (b",".join(pieces), _json(rest | _status(answer, took_ms))[1:])


def _list(row: npt.NDArray[Any], count: int) -> bytes:
    """Write the first elements of a row, piece by piece: numpy and pydantic keep the lock within one."""
    starts = range(0, max(count, 1), ROWS_AT_ONCE)
    parts = [row[start : min(start + ROWS_AT_ONCE, count)] for start in starts]
    plain = [part.tolist() if part.ndim == 1 else _vectors_of(part) for part in parts]
    return b"[%s]" % b",".join([_json(part)[1:-1] for part in plain])


def _rows(table: pa.Table) -> bytes:
    batches = table.to_batches(ROWS_AT_ONCE)
    return b"[%s]" % b",".join([_json(batch.to_pylist())[1:-1] for batch in batches if batch.num_rows])


def _json(value: Any) -> bytes:
    # JSON has no NaN: a column that holds one reads null. Bytes travel as base64.
    return to_json(value, inf_nan_mode="null", bytes_mode="base64")


def _vectors_of(rows: npt.NDArray[np.float32]) -> list[list[float] | None]:
    """Vectors as JSON; null for missing ones, which are NaN."""
    missing = np.isnan(rows[:, 0]).tolist()
    return [None if lost else row for lost, row in zip(missing, rows.tolist(), strict=True)]


def _plain(value: Any) -> Any:
    """A group's value as JSON; nanosecond times are numpy values."""
    return str(value) if isinstance(value, np.datetime64) else value


def _to_arrow(answer: Answer, took_ms: float) -> bytes:
    """Write a row for each hit; the metadata of the schema holds the rest of the answer."""
    hits = answer.hits
    query_count, k = hits.ids.shape
    real = is_hit(hits)
    places = np.argwhere(real)
    ids = hits.ids[real]
    columns: dict[str, Any] = {
        "query": pa.array(places[:, 0].astype(np.int32)),
        "rank": pa.array(places[:, 1].astype(np.int32)),
        "id": pa.array(ids.tolist(), pa.string()) if hits.ids.dtype == object else pa.array(ids, pa.int64()),
        "distance": pa.array(hits.distances[real], pa.float32()),
    }
    if hits.scores is not None:
        columns["score"] = pa.array(hits.scores[real], pa.float32())
    if hits.vectors is not None:
        found = hits.vectors[real]
        columns["vector"] = pa.FixedSizeListArray.from_arrays(
            pa.array(found.reshape(-1)), found.shape[1], mask=pa.array(np.isnan(found[:, 0]))
        )
    if hits.groups is not None:
        each = [
            (place, value)
            for groups in hits.groups
            for place, (value, size) in enumerate(groups)
            for _ in range(size)
        ]
        columns["group"] = pa.array([place for place, _ in each], pa.int32())
        columns["value"] = pa.array([value for _, value in each])
    table = pa.table(columns)
    if hits.metadata is not None:
        extra = plain(joined(hits.metadata))
        for name in extra.column_names:
            label = name if name not in columns else f"metadata.{name}"
            table = table.append_column(label, extra.column(name))
    status = _status(answer, took_ms) | {
        "query_count": query_count,
        "k": k,
        "metadata": hits.metadata is not None,
    }
    return stream_of(table.replace_schema_metadata({"velo": json.dumps(status)}))
