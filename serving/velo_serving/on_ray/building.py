"""``build_on_ray``: each shard of a collection built by a task on the node where it will live."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from velo.building.collection import row_ranges, shard_name
from velo.building.tables import check_order, parts_of, query_sample
from velo.errors import EmptyError, IndexExistsError, InvalidArgumentError, VeloError
from velo.folder.ids import given_ids
from velo.folder.metadata import given_metadata
from velo.folder.replace import durable_file, os_failure
from velo.formats.source import Source, chunk_rows
from velo.options import BuildKeywords, build_options, folder_path, in_range, memory_bytes, sizes_of
from velo.types import AnyArray, Memory
from velo_serving.catalog.collection import COLLECTION_FILE, FORMAT_VERSION, Collection, Pin, read_collection
from velo_serving.catalog.locations import is_url, join, read_file, write_file
from velo_serving.on_ray.actors import first_line, node_has, pin_options, ray, ray_exceptions, start_local_ray
from velo_serving.protocol.errors import BuildTaskError, LocationError, PlacementError
from velo_serving.protocol.types import Failure
from velo_serving.shard.building import BuildJob, BuiltShard, Handed, build_job, plain_table

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: How often a task is tried when its process or its node dies.
RETRIES: Final = 3

#: What a build takes beside what grows with its vectors.
FIXED_BYTES: Final = 64 << 20

#: How often nodes and tasks are looked at.
LOOK_S: Final = 0.5


Ranges: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class _Input:
    """The input of a build, and the parts of it for the tasks of ranges of rows."""

    rows: int
    dim: int
    hand: Callable[[Ranges], Iterator[dict[str, Any]]]
    job: dict[str, Any]


def build_on_ray(
    target: str | Path,
    vectors: Any,
    *,
    shards: int,
    pin: str | Mapping[str, str] | None = None,
    build_memory: Memory | None = None,
    resume: bool = True,
    column: str | None = None,
    ids: Any = None,
    ids_column: str | None = None,
    metadata: Any = None,
    queries: Any = None,
    version: str = "",
    num_cpus: float = 1,
    start_timeout_s: float = 120.0,
    progress: Callable[[str], None] | None = None,
    **options: Unpack[BuildKeywords],
) -> Collection:
    """Build a collection, each shard by a Ray task on the node where it will live.

    A task that dies is restarted and resumes. Complete shards stay, whatever happens to others. If a shard
    cannot be built, the others are finished before the error is raised; repeating the call resumes.

    Parameters
    ----------
    target : path or str
        The collection's folder, under the same path on every node, or a location in an object store such as
        ``s3://bucket/photos``. This process writes ``collection.json`` there last.
    vectors : path, Arrow table, array, or ray.data.Dataset
        A file must have this path on every node. Tables and arrays are sent to the tasks in parts. The rows
        of a dataset do not pass through this process.
    shards : int
        At most as many as rows.
    pin : str or mapping, optional
        As in ``Cluster.start``, and recorded in ``collection.json``. Without it Ray chooses the nodes, which
        must see the same folder or an object store.
    build_memory : int, float or str, optional
        Memory for the build of one shard, which Ray reserves; default: what an unlimited build takes.
    resume : bool
        Keep complete shards of the same rows and options, and resume incomplete ones.
    column, ids, ids_column, metadata, queries
        As in ``velo.build``. A dataset takes `ids_column` and ``metadata=True``.
    version : str
        The name of the build; see ``Cluster.publish``.
    num_cpus : float
        Processors that Ray reserves for a task, and the default of `threads`.
    start_timeout_s : float
        How long to wait for nodes that match the pins and have the memory.
    progress : callable, optional
        Called with a line of text as shards are done.
    **options
        Further options of ``velo.build``.

    Returns
    -------
    Collection

    Raises
    ------
    PlacementError, BuildTaskError
        No node matches a pin or has the memory, or a task died too often.
    IndexExistsError, VeloError
        The target holds a collection or foreign folders, or ``velo.build`` fails.
    """
    place = _checked_target(target, vectors)
    chosen = build_options("build_on_ray", options)
    if chosen.threads is None:
        chosen = dataclasses.replace(chosen, threads=max(1, int(num_cpus)))
    if not ray.is_initialized():
        start_local_ray()
    count = in_range(shards, "shards")
    given = _input_of(vectors, column, ids, ids_column, metadata)
    if not given.rows:
        raise EmptyError("there are no vectors to index", argument="vectors")
    if count > given.rows:
        raise InvalidArgumentError(f"{count} shards cannot hold {given.rows} vectors", argument="shards")
    chosen = chosen.for_vectors(given.rows, given.dim)
    sample = query_sample(queries, given.dim, chosen)
    pins = [_pin_of(pin, str(number)) for number in range(count)]
    jobs = []
    for number, (start, stop) in enumerate(row_ranges(given.rows, count)):
        limit = memory_bytes(build_memory, stop - start, given.dim, "build_memory") or None
        name = shard_name(number)
        jobs.append(
            BuildJob(
                place, name, start, stop, given.rows, chosen, build_memory=limit, resume=resume, **given.job
            )
        )
    _await_nodes(jobs, pins, given.dim, num_cpus, start_timeout_s)
    built = _run(jobs, pins, given, sample, num_cpus, progress)
    document: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "n": given.rows,
        "dim": given.dim,
        "metric": chosen.metric,
        **({"version": version} if version else {}),
        "shards": [
            {
                "path": job.shard,
                "first_row": job.start,
                "rows": job.stop - job.start,
                "uuid": shard.uuid,
                "checksum": shard.checksum,
                **({} if where is None else {"pin": str(where)}),
            }
            for job, shard, where in zip(jobs, built, pins, strict=True)
        ],
    }
    _write_last(place, document)
    return read_collection(place)


def reserved_bytes(job: BuildJob, dim: int) -> int:
    if job.build_memory is not None:
        return job.build_memory + FIXED_BYTES
    sizes = sizes_of(job.stop - job.start, dim, degree=job.options.degree)
    return int(sizes.build_whole_bytes) + FIXED_BYTES


def _checked_target(target: str | Path, vectors: Any) -> str:
    check_order(target, vectors)
    if isinstance(target, str) and is_url(target):
        with suppress(LocationError):
            read_file(join(target, COLLECTION_FILE))
            raise IndexExistsError(f"{target} already holds a collection", argument="target")
        return target
    folder = folder_path(target, "target").absolute()
    if (folder / COLLECTION_FILE).exists():
        raise IndexExistsError(f"{folder} already holds a collection", argument="target")
    if not folder.parent.is_dir():
        raise InvalidArgumentError(
            f"cannot create {folder}: its parent folder does not exist", argument="target"
        )
    return str(folder)


def _pin_of(pin: str | Mapping[str, str] | None, shard: str) -> Pin | None:
    text = pin.get(shard) if isinstance(pin, Mapping) else pin
    if text is None:
        return None
    if "{replica}" in text:
        raise InvalidArgumentError(
            "a shard is built once, so its pin cannot depend on {replica}: build into an object store, "
            "from which each replica takes its copy",
            argument="pin",
        )
    return Pin.parse(text, shard)


def _input_of(vectors: Any, column: str | None, ids: Any, ids_column: str | None, metadata: Any) -> _Input:
    if hasattr(vectors, "split_at_indices") and hasattr(vectors, "to_arrow_refs"):
        return _dataset(vectors, column, ids, ids_column, metadata)
    source, ids, metadata = parts_of(
        vectors, column=column, ids=ids, ids_column=ids_column, metadata=metadata
    )
    total, dim = source.shape
    all_ids = None if ids is None else given_ids(ids, total)
    table = None if metadata is None else given_metadata(metadata, total).table()
    is_file = isinstance(vectors, str | Path)

    def hand(ranges: Ranges) -> Iterator[dict[str, Any]]:
        for start, stop in ranges:
            yield {
                "vectors": None if is_file else _copied(source, start, stop),
                "ids": None if all_ids is None else all_ids[start:stop],
                "metadata": None if table is None else table.slice(start, stop - start),
            }

    job = {"file": str(Path(vectors).absolute()), "column": column} if is_file else {}
    return _Input(total, dim, hand, job)


def _copied(source: Source, start: int, stop: int) -> AnyArray:
    rows = chunk_rows(source.shape[1] * source.dtype.itemsize)
    return np.concatenate([np.array(chunk) for chunk in source.chunks(rows, start, stop)])


def _dataset(dataset: Any, column: str | None, ids: Any, ids_column: str | None, metadata: Any) -> _Input:
    if ids is not None:
        raise InvalidArgumentError("the ids of a dataset are a column of it: ids_column", argument="ids")
    if metadata not in (None, True):
        raise InvalidArgumentError("the metadata of a dataset is True, for all columns", argument="metadata")
    with _ordered(dataset):
        held = dataset.materialize()  # once: another reading might bring other rows
    total = int(held.count())
    if not total:
        return _Input(0, 0, lambda ranges: iter(()), {})
    first = plain_table([held.take_batch(1, batch_format="pyarrow")])
    source, _, _ = parts_of(first, column=column, ids_column=ids_column, metadata=True if metadata else None)
    if ids_column is not None:
        # No two shards may have an id in common; only this process sees all of them.
        names = plain_table(ray.get(held.select_columns([ids_column]).to_arrow_refs()))
        given_ids(names.column(0), total)
    job = {"column": column, "ids_column": ids_column, "others": metadata is True}

    def hand(ranges: Ranges) -> Iterator[dict[str, Any]]:
        starts = [start for start, _ in ranges[1:]]
        for part in held.split_at_indices(starts) if starts else [held]:
            yield {"blocks": part.to_arrow_refs()}

    return _Input(total, source.shape[1], hand, job)


@contextmanager
def _ordered(dataset: Any) -> Iterator[None]:
    """Preserve the order of the dataset: a resumed build needs the same rows."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before


def _task(job: BuildJob, blocks: Sequence[Any] | None, handed: dict[str, Any]) -> BuiltShard | Failure:
    try:
        if blocks is not None:
            handed = {**handed, "vectors": plain_table(ray.get(list(blocks)))}
        return build_job(job, Handed(**handed))
    except VeloError as error:
        failure = Failure.of(error)
        message = f"{job.shard}, rows {job.start} to {job.stop - 1} of all: {failure.message}"
        row = failure.row if failure.row is None or failure.argument != "vectors" else job.start + failure.row
        return dataclasses.replace(failure, message=message, row=row)


def _await_nodes(
    jobs: Sequence[BuildJob], pins: Sequence[Pin | None], dim: int, num_cpus: float, timeout_s: float
) -> None:
    """Wait for matching nodes: Ray waits forever for a task that no node matches."""
    deadline = time.monotonic() + timeout_s
    nodes: Any = ray.nodes
    for job, pin in zip(jobs, pins, strict=True):
        needed = reserved_bytes(job, dim)
        while not any(node_has(node, pin, memory=needed, num_cpus=num_cpus) for node in nodes()):
            if time.monotonic() > deadline:
                where = "node" if pin is None else f"node with {pin}"
                raise PlacementError(
                    f"no {where} can reserve {needed} bytes and {num_cpus:g} processors for {job.shard}",
                    argument="build_memory" if pin is None else "pin",
                )
            time.sleep(LOOK_S)


def _run(
    jobs: Sequence[BuildJob],
    pins: Sequence[Pin | None],
    given: _Input,
    sample: AnyArray | None,
    num_cpus: float,
    progress: Callable[[str], None] | None,
) -> list[BuiltShard]:
    make: Any = ray.remote
    remote = make(max_retries=RETRIES)(_task)
    tasks: dict[Any, int] = {}
    done: dict[int, BuiltShard] = {}
    parts = given.hand([(job.start, job.stop) for job in jobs])
    for number, (job, pin, part) in enumerate(zip(jobs, pins, parts, strict=True)):
        blocks = part.pop("blocks", None)
        task = remote.options(
            name=f"velo-build-{job.shard}",
            num_cpus=num_cpus,
            memory=reserved_bytes(job, given.dim),
            **pin_options(pin),
        ).remote(job, blocks, ray.put(part | {"queries": sample}))
        tasks[task] = number
    failures: list[VeloError] = []
    waiting = list(tasks)
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1)
        number = tasks[ready[0]]
        try:
            done[number] = _result_of(ready[0], jobs[number])
        except VeloError as error:
            # Others go on, and what they finish stays. They are not canceled: to cancel a task as it ends
            # is fatal to the process that started it (Ray 2.60, "task that was not pending").
            failures.append(error)
            continue
        if progress is not None:
            how = "built" if done[number].fresh else "there already"
            progress(f"{jobs[number].shard} is {how}: {len(done)} of {len(jobs)}")
    if failures:
        raise failures[0]
    return [done[number] for number in range(len(jobs))]


def _result_of(task: Any, job: BuildJob) -> BuiltShard:
    try:
        result = ray.get(task)
    except ray_exceptions.RayError as error:
        raise BuildTaskError(
            f"{job.shard} of {job.target} was not built: {first_line(error)}; what is complete stays, "
            "and the same call goes on"
        ) from None
    if isinstance(result, Failure):
        raise result.to_error()
    built: BuiltShard = result
    return built


def _write_last(place: str, document: Mapping[str, Any]) -> None:
    content = f"{json.dumps(document, indent=2)}\n".encode()
    if is_url(place):
        write_file(join(place, COLLECTION_FILE), content)
        return
    folder = Path(place)
    try:
        folder.mkdir(exist_ok=True)
        with durable_file(folder / COLLECTION_FILE) as file:
            file.write(content)
    except OSError as error:
        raise os_failure(error, place) from error
