"""One shard of a collection, built where it will live: what a task of ``build_on_ray`` does, without Ray."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo.building.build import build_shard
from velo.building.tables import parts_of
from velo.errors import IndexExistsError, InvalidArgumentError
from velo.folder.manifest import MANIFEST_FILE
from velo.folder.replace import MARKER, durable_file, os_failure
from velo.formats.files import as_source, open_vectors
from velo.formats.source import Source, chunk_rows, native_dtype, native_layout
from velo.options import BuildOptions
from velo.types import AnyArray
from velo_serving.catalog.locations import (
    cache_folder,
    checksum_of,
    is_url,
    join,
    keep,
    read_file,
    send_folder,
    write_file,
)
from velo_serving.protocol.errors import LocationError

#: Rows of a table that are hashed at once; another number would give another fingerprint.
HASH_ROWS: Final = 65_536

#: Bytes of a fingerprint.
DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class BuildJob:
    """The build of one shard by a task.

    ``target`` is the collection, ``shard`` the folder below it; ``start`` to ``stop`` are rows of the
    ``total``. The vectors are in ``file`` if every node sees it, else they are passed to the task. ``others``
    makes the other columns of the rows metadata.
    """

    target: str
    shard: str
    start: int
    stop: int
    total: int
    options: BuildOptions
    file: str | None = None
    column: str | None = None
    ids_column: str | None = None
    others: bool = False
    build_memory: int | None = None
    resume: bool = True


@dataclass(frozen=True, slots=True)
class BuiltShard:
    """A complete shard; ``fingerprint`` is that of its rows and options, ``fresh`` that it was built now."""

    rows: int
    dim: int
    uuid: str
    checksum: str
    fingerprint: str
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class Handed:
    """The columns of a task's own rows, which come beside its job."""

    vectors: Any = None
    ids: Any = None
    metadata: Any = None
    queries: AnyArray | None = None


def plain_table(tables: Sequence[pa.Table]) -> pa.Table:
    """Blocks of a dataset as one table, with Ray's tensors as lists."""
    plain = []
    for table in tables:
        columns: list[Any] = []
        for column in table.columns:
            chunks: Any = [
                one.storage if isinstance(one, pa.ExtensionArray) else one for one in column.chunks
            ]
            kind: Any = column.type
            if isinstance(kind, pa.BaseExtensionType):
                kind = kind.storage_type
            columns.append(pa.chunked_array(chunks, kind))
        plain.append(pa.table(columns, names=table.column_names))
    return pa.concat_tables(plain, promote_options="permissive")


def job_folder(job: BuildJob) -> Path:
    if not is_url(job.target):
        return Path(job.target) / job.shard
    place = hashlib.sha256(job.target.encode()).hexdigest()[: DIGEST_BYTES * 2]
    return cache_folder() / f"building-{place}" / job.shard


def build_job(job: BuildJob, handed: Handed) -> BuiltShard:
    """Build a shard, unless it is complete with the same rows and options.

    A receipt beside its folder marks it as ours, and records the input of a complete shard.
    """
    source, ids, metadata = _parts(job, handed)
    rows = _Rows(source, job.start, job.total)
    others = _fingerprint_of_others(job, ids, metadata, handed.queries)
    folder = job_folder(job)
    receipt = _Receipt(job)
    there = receipt.read()
    if there is not None and there.rows == job.stop - job.start and job.resume:
        rows.read_once(job.start, job.stop)
        if there.fingerprint == rows.fingerprint(others):
            return there
    _claim(folder, receipt, job, is_complete=there is not None)
    build_shard(
        folder,
        rows,
        job.options,
        ids=ids,
        metadata=metadata,
        queries=handed.queries,
        build_memory=job.build_memory,
        resume=job.resume,
        start=job.start,
        stop=job.stop,
    )
    manifest = (folder / MANIFEST_FILE).read_bytes()
    built = BuiltShard(
        rows=job.stop - job.start,
        dim=source.shape[1],
        uuid=str(json.loads(manifest).get("uuid", "")),
        checksum=checksum_of(manifest),
        fingerprint=rows.fingerprint(others),
    )
    if is_url(job.target):
        send_folder(folder, join(job.target, job.shard))
    receipt.write(built)
    if is_url(job.target):
        keep(folder, built.checksum)
    return built


def _parts(job: BuildJob, handed: Handed) -> tuple[Source, Any, Any]:
    if job.file is not None:
        return open_vectors(job.file, column=job.column), handed.ids, handed.metadata
    if not isinstance(handed.vectors, pa.Table):
        return as_source(handed.vectors), handed.ids, handed.metadata
    return parts_of(
        handed.vectors, column=job.column, ids_column=job.ids_column, metadata=True if job.others else None
    )


class _Rows(Source):
    """The rows of a shard as rows of the whole input; what goes through for the first time is hashed."""

    def __init__(self, source: Source, start: int, total: int) -> None:
        self._source = source
        self._dtype = native_dtype(source.dtype)
        #: A file has all rows, what was handed over has those of the shard alone.
        self._first = 0 if source.shape[0] == total else start
        self._total = total
        self._digest: bytes | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self._total, self._source.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._source.dtype

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES) if self._digest is None else None
        for chunk in self._source.slices(rows, start - self._first, stop - self._first):
            if digest is not None:
                digest.update(np.ascontiguousarray(native_layout(chunk, self._dtype)).data)
            yield chunk
        if digest is not None:
            self._digest = digest.digest()

    def read_once(self, start: int, stop: int) -> None:
        for _ in self.slices(chunk_rows(self.shape[1] * self._dtype.itemsize), start, stop):
            pass

    def fingerprint(self, others: bytes) -> str:
        """The fingerprint of the rows and of everything else that determines the shard."""
        assert self._digest is not None
        return hashlib.blake2b(self._digest + others, digest_size=DIGEST_BYTES).hexdigest()


def _fingerprint_of_others(job: BuildJob, ids: Any, metadata: Any, queries: AnyArray | None) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    # How many threads build decides no more than the order of things; the rest decides what comes out.
    options = dataclasses.asdict(dataclasses.replace(job.options, threads=None))
    digest.update(repr((sorted(options.items()), job.start, job.stop)).encode())
    if queries is not None:
        digest.update(np.ascontiguousarray(queries).data)
    tables = []
    if ids is not None:
        column = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids)
        tables.append(pa.table([column], names=["id"]))
    if metadata is not None:
        tables.append(metadata)
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            for batch in table.combine_chunks().to_batches(HASH_ROWS):
                writer.write_batch(batch)
        digest.update(sink.getvalue())
    return digest.digest()


class _Receipt:
    """The files beside the folder of a shard."""

    def __init__(self, job: BuildJob) -> None:
        self._job = job
        self._folder = job_folder(job)
        self._file = self._folder.with_name(f"{job.shard}.json")

    @property
    def is_ours(self) -> bool:
        return self._file.is_file()

    def read(self) -> BuiltShard | None:
        """The shard that is complete, or None."""
        job = self._job
        try:
            if is_url(job.target):
                document = json.loads(read_file(join(job.target, f"{job.shard}.json")))
                manifest = read_file(join(join(job.target, job.shard), MANIFEST_FILE))
            else:
                document = json.loads(self._file.read_bytes())
                manifest = (self._folder / MANIFEST_FILE).read_bytes()
                if (self._folder / MARKER).exists():
                    return None
            built = BuiltShard(**document, fresh=False)
        except (OSError, ValueError, TypeError, LocationError):
            return None
        return built if built.checksum == checksum_of(manifest) else None

    def claim(self) -> None:
        with durable_file(self._file) as file:
            file.write(b"{}\n")

    def write(self, built: BuiltShard) -> None:
        document = {name: value for name, value in dataclasses.asdict(built).items() if name != "fresh"}
        content = f"{json.dumps(document)}\n".encode()
        if is_url(self._job.target):
            write_file(join(self._job.target, f"{self._job.shard}.json"), content)
            return
        with durable_file(self._file) as file:
            file.write(content)


def _claim(folder: Path, receipt: _Receipt, job: BuildJob, *, is_complete: bool) -> None:
    """Prepare the folder of a shard; what an interrupted task left stays."""
    try:
        if is_url(job.target):
            folder.parent.mkdir(parents=True, exist_ok=True)
        else:
            folder.parent.mkdir(exist_ok=True)
        if folder.exists() and not receipt.is_ours:
            raise IndexExistsError(f"{folder} exists and is not ours", argument="target")
        receipt.claim()
        # A complete index is of other rows or options, or the task died before it recorded them.
        built = (folder / MANIFEST_FILE).is_file() and not (folder / MARKER).exists()
        if is_complete or built or not job.resume:
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"cannot create {folder.parent}: its parent folder does not exist on this node", argument="target"
        ) from None
    except OSError as error:
        if isinstance(error, IndexExistsError):
            raise
        raise os_failure(error, str(folder)) from error
