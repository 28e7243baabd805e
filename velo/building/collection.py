"""Sharded builds: a folder of indexes over contiguous ranges of rows; ``collection.json`` is written last."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from velo.building.build import Watch, build_shard, overall
from velo.building.tables import check_order, parts_of, progress_of, query_sample
from velo.errors import IndexExistsError, InvalidArgumentError, VeloError
from velo.folder.ids import given_ids
from velo.folder.manifest import COLLECTION_FILE
from velo.folder.metadata import given_metadata
from velo.folder.replace import durable_file, folder_to_fill, os_failure, sync_folder
from velo.folder.shards import built_uuid
from velo.formats.files import as_source
from velo.hints import hinted
from velo.options import (
    BuildKeywords,
    BuildOptions,
    build_options,
    folder_path,
    in_range,
    shows_build_options,
)
from velo.types import Memory, PathLike, ProgressCallback

if TYPE_CHECKING:
    from typing_extensions import Unpack

FORMAT: Final = 1

#: Exists in a folder that a build fills; the next build takes over a killed one's folder.
_MARKER: Final = "building"


def shard_name(number: int) -> str:
    """The folder of a shard within its collection."""
    return f"shard-{number:05d}"


def row_ranges(rows: int, shards: int) -> list[tuple[int, int]]:
    """Contiguous ranges of nearly equal size that cover all rows."""
    return [(rows * number // shards, rows * (number + 1) // shards) for number in range(shards)]


@hinted
@shows_build_options
def build_collection(
    path: PathLike,
    vectors: Any,
    *,
    shards: int,
    column: str | None = None,
    ids: Any = None,
    ids_column: str | None = None,
    metadata: Any = None,
    text: str | None = None,
    queries: Any = None,
    build_memory: Memory | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | bool | None = None,
    **options: Unpack[BuildKeywords],
) -> Path:
    """Build a collection of shards in a folder.

    Each shard holds a contiguous range of rows and is an index that opens by itself. Without `ids` the ids
    are row numbers of the whole input, so the answers of all shards can be merged.

    Parameters
    ----------
    path : path
        The folder to make. Its shards are ``shard-00000`` and so on.
    vectors, column, ids, ids_column, metadata, text, queries, overwrite, progress :
        As for :func:`velo.build`.
    shards : int
        How many; at most as many as rows.
    build_memory : int, float or str, optional
        What the build of one shard may keep in memory. Shards are built one after the other.
    search_memory : int, float or str, optional
        The `memory` that searches will have, of all shards together; see :func:`velo.build`.
    **options
        What else shapes an index, as for :func:`velo.build`: `metric`, `memory_bits`, `record_bits`,
        `degree`, `build_list_size`, `alpha`, `links_kept`, `page_links`, `page_codes`,
        `record_code_bytes`, `threads`, `seed`, `store_vectors`, `calibrate`, `device`.

    Returns
    -------
    pathlib.Path
        The folder.

    Examples
    --------
    >>> folder = velo.build_collection("shop.collection", vectors, shards=2)
    >>> sorted(entry.name for entry in folder.iterdir())
    ['collection.json', 'shard-00000', 'shard-00001']
    """
    check_order(path, vectors)
    report = progress_of(progress)
    chosen = build_options("build_collection", options)
    source, ids, metadata = parts_of(
        vectors, column=column, ids=ids, ids_column=ids_column, metadata=metadata
    )
    total = source.shape[0]

    def watch_of(_number: int, start: int, stop: int) -> Watch | None:
        if report is None:
            return None
        return overall(lambda done, _rows: report(start + done, total), stop - start)

    return build_shards(
        path,
        source,
        chosen,
        shards=shards,
        ids=ids,
        metadata=metadata,
        text=text,
        queries=queries,
        build_memory=build_memory,
        overwrite=overwrite,
        watch_of=watch_of,
    )


def build_shards(
    path: PathLike,
    vectors: Any,
    options: BuildOptions,
    *,
    shards: int,
    ids: Any = None,
    metadata: Any = None,
    text: str | None = None,
    queries: Any = None,
    build_memory: Memory | None = None,
    overwrite: bool = False,
    watch_of: Callable[[int, int, int], Watch | None] = lambda _number, _start, _stop: None,
) -> Path:
    """As :func:`build_collection`, with checked options; `watch_of(number, start, stop)` watches a shard."""
    source = as_source(vectors)
    total, dim = source.shape
    options = options.for_vectors(total, dim)
    shards = in_range(shards, "shards")
    if shards > max(total, 1):
        raise InvalidArgumentError(f"{shards} shards cannot hold {total} vectors", argument="shards")
    sample = query_sample(queries, dim, options)
    column = None if ids is None else given_ids(ids, total)
    table = None if metadata is None else given_metadata(metadata, total).table()
    target = folder_path(path)
    with folder_to_fill(target, overwrite, COLLECTION_FILE) as folder:
        is_new = _claim(folder)
        try:
            entries = []
            for number, (start, stop) in enumerate(row_ranges(total, shards)):
                build_shard(
                    folder / shard_name(number),
                    source,
                    options,
                    ids=None if column is None else column[start:stop],
                    metadata=None if table is None else table.slice(start, stop - start),
                    text=text,
                    queries=sample,
                    build_memory=build_memory,
                    watch=watch_of(number, start, stop),
                    start=start,
                    stop=stop,
                )
                entries.append(
                    {
                        "path": shard_name(number),
                        "first_row": start,
                        "rows": stop - start,
                        "uuid": built_uuid(folder / shard_name(number)),
                    }
                )
            document = {"format": FORMAT, "n": total, "dim": dim, "metric": options.metric, "shards": entries}
            _write_last(folder, document)
        except OSError as error:
            _abandon(folder, is_new)
            if isinstance(error, VeloError):
                raise
            raise os_failure(error, str(error.filename or folder)) from error
        except KeyboardInterrupt:
            _abandon(folder, is_new)
            raise KeyboardInterrupt from None  # a shard would say that its work stays
        except BaseException:
            _abandon(folder, is_new)
            raise
    return target


def _claim(folder: Path) -> bool:
    """Make the folder, or take over what a killed build left there; True if it was made."""
    try:
        folder.mkdir()
        is_new = True
    except FileExistsError:
        is_new = False
        left = [entry.name for entry in folder.iterdir()]
        if _MARKER not in left and left:
            what = (
                "already holds a collection" if COLLECTION_FILE in left else "holds files that are not ours"
            )
            raise IndexExistsError(f"{folder} {what}", argument="path") from None
        _remove_shards(folder)
    except OSError as error:
        raise os_failure(error, str(folder)) from error
    try:
        (folder / _MARKER).touch()
    except OSError as error:
        raise os_failure(error, str(folder)) from error
    return is_new


def _remove_shards(folder: Path) -> None:
    for entry in folder.iterdir():
        if re.fullmatch(r"shard-\d{5}", entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def _abandon(folder: Path, is_new: bool) -> None:
    _remove_shards(folder)
    (folder / _MARKER).unlink(missing_ok=True)
    if is_new:
        shutil.rmtree(folder, ignore_errors=True)


def _write_last(folder: Path, document: dict[str, Any]) -> None:
    with durable_file(folder / COLLECTION_FILE) as file:
        file.write(f"{json.dumps(document, indent=2)}\n".encode())
    (folder / _MARKER).unlink(missing_ok=True)
    sync_folder(folder)
