"""Build an index and open it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from velo.building.build import build_shard, overall
from velo.building.tables import check_order, parts_of, progress_of, query_sample
from velo.hints import hinted
from velo.index.index import Index
from velo.index.open import open_index
from velo.options import BuildKeywords, build_options, memory_bytes, shows_build_options
from velo.types import Memory, PathLike, ProgressCallback

if TYPE_CHECKING:
    from typing_extensions import Unpack


@hinted
@shows_build_options
def build(
    path: PathLike,
    vectors: Any,
    *,
    column: str | None = None,
    ids: Any = None,
    ids_column: str | None = None,
    metadata: Any = None,
    text: str | None = None,
    queries: Any = None,
    memory: Memory | None = None,
    build_memory: Memory | None = None,
    overwrite: bool = False,
    resume: bool = True,
    progress: ProgressCallback | bool | None = None,
    **options: Unpack[BuildKeywords],
) -> Index:
    """Build an index in a folder and open it.

    Vectors are read twice and never copied whole. So files and memory maps may be larger than memory. A build
    that fails or is canceled leaves nothing. A build that was interrupted (Ctrl-C) or killed leaves its work,
    and the same call goes on where it was.

    Parameters
    ----------
    path : path
        The folder to make. Its parent must exist.
    vectors : array-like of shape (n, d), memmap, path, Arrow list array, table, frame, or VectorSource
        float32, float16, uint8 or int8. float64 is narrowed to float32. :func:`velo.formats.open_vectors`
        opens a path. A table is one of Arrow, pandas, polars, a list of a dict a row, a Parquet or Arrow
        file, many Parquet files (a folder as of Hugging Face, a pattern such as ``"data/train-*.parquet"``,
        a list of paths), or a data set of ``pyarrow.dataset``, with a column of lists of numbers.
    column : str, optional
        Which column of a table holds the vectors, where several could.
    ids : array-like of int or str, optional
        One for each row, no two equal. Without them ids are row numbers.
    ids_column : str, optional
        The column that holds the ids: of the vectors' table, or of the metadata. It becomes no metadata.
    metadata : pyarrow.Table, frame, dict of columns, path of a Parquet file, or True, optional
        One row for each vector. Filters and ``return_metadata`` see it. True takes all other columns of the
        vectors' table. A :class:`LeftOutWarning` names what the index leaves out of that table.
    text : str, optional
        The column of the metadata that holds the text, strings: :meth:`Index.search` then finds rows by their
        words, too.
    queries : array-like of shape (m, d), or path, optional
        Queries as users ask them, 60 or more, for `calibrate`. Without them rows stand for queries. That is
        right if queries are distributed like rows. If they are not (users and items, questions
        and texts), ``recall=`` then means more or less than it says, at the cost of reads or of recall.
    metric : {"l2", "ip", "cosine"}
        How vectors are compared: by squared length, negated inner product, or 1 - cosine.
    memory : int, float or str, optional
        What the returned index may keep in memory: bytes, a share of n·d·4 bytes (``"15%"``), or a size
        (``"2GiB"``).
    build_memory : int, float or str, optional
        What the build may keep in memory; no limit without it. In one piece a build takes 71 % of n·d·4 bytes
        at 128 dimensions and `degree` 48. With less it links vectors partition by partition: up to twice the
        work, for nearly the same index. Less than about 20 bytes a vector is refused, and the error says what
        it takes. `calibrate` measures no more than has room. Beside the budget stand ids, metadata, and at
        most 64 MiB that do not grow with the vectors (up to 16 threads and a thousand dimensions).
    search_memory : int, float or str, optional
        The `memory` that searches will have. It chooses the bits that you leave open. More bits in memory
        save reads, as long as links find room beside them.
    memory_bits, record_bits : int, optional
        Bits a dimension of the code in memory (1 to 6), and of its rest on disk (0 to 8). Where nothing
        chooses them they are 4, and as many as make 10 in all.
    degree : int
        Links of a vertex.
    build_list_size : int
        Candidates kept while a vertex is linked. More make a build slower and searches better.
    alpha : float
        Pruning. Above 1 it keeps longer links.
    links_kept : int, optional
        Links of a vertex that an open index may keep in memory. Without it 32, or 8 if `search_memory` has no
        room for codes, or `degree` where that is less. With 0 an index is always opened with its links on
        disk.
    page_links : bool, optional
        Whether pages hold links as well. An index needs that to be opened in less memory than its links take.
        Without links a page holds more records: an index of 128 dimensions is a fifth smaller, and a search
        reads a twentieth less. By default pages hold links, unless `search_memory` has room for all of them.
    page_codes : bool, optional
        Whether pages hold whole codes, and a few codes of each page lie beside them. An index needs both to
        be opened in less memory than its codes take: from 0.3 % of float32 vectors on. A page then holds a
        fifth fewer records. By default they do where `search_memory` has no room for codes.
    record_code_bytes : int, optional
        With `page_codes`: bytes of a product code of each row, at most 64 and the dimensions, for an index
        that is opened with 3 to 9 % of float32 vectors; 0 for none. By default the longest code for which
        `search_memory` has room, where it has none for codes of 2 bits and links.
    threads : int, optional
        Without it all cores. With 1 the same input and seed give the same index.
    seed : int
        Of everything random.
    store_vectors : bool, optional
        Keep the vectors as they are, for :meth:`Index.get_vectors` and for exact distances (``exact=True`` of
        :meth:`Index.search`). They take n·d times the size of an element on disk, and up to two fifths more
        where few rows fill a page. Without a choice, a build that measures (`calibrate`) keeps them where
        codes alone do not reach a recall of 0.99.
    calibrate : bool
        Measure, on rows that are held out or on `queries`, how far a search must go for each recall. Then
        ``recall=`` of a search means what it says. Without it, and below 1,000 rows, a fixed table stands in.
        It reads the vectors once more.
    device : str
        "cuda" finds neighbors of new vertices with the first GPU, "cuda:1" with another; all else stays on
        the CPU. "auto" falls back to the CPU where there is no GPU. The index searches as one that the CPU
        has built; to search it with a GPU, open it with `device`.
    overwrite : bool
        Replace an index at `path` once the new one is complete.
    resume : bool
        Go on where a killed or interrupted build of the same vectors and options left its work. The vectors
        are read and compared first. The state of a long stage is saved every half minute. Work of other
        vectors or options is removed; without `resume` all is. With ``threads=1`` the index is the same, byte
        for byte, as if the build had never been killed.
    progress : callable or True, optional
        True writes a line on stderr. A function is called with (done, total) now and then, from this thread.
        If it returns False the build is canceled.

    Returns
    -------
    Index
        Open. Use it in ``with``, or close it.

    Raises
    ------
    VeloError
        One of its kinds, naming argument and row: :class:`NotFiniteError`, :class:`DimensionMismatchError`,
        :class:`DtypeError`, :class:`EmptyError`, :class:`DuplicateIdError`, :class:`BudgetTooSmallError`,
        :class:`NoSpaceError`, :class:`PermissionDeniedError`, :class:`IndexExistsError`,
        :class:`CancelledError`, :class:`GpuError`. A GPU that fails during the build is a
        :class:`GpuWarning`, and the CPU goes on.

    Examples
    --------
    >>> with velo.build("new.velo", vectors, metadata=table, memory="50%") as index:
    ...     ids, distances = index.search(query, k=3)
    """
    check_order(path, vectors)
    report = progress_of(progress)
    chosen = build_options("build", options)
    source, ids, metadata = parts_of(
        vectors, column=column, ids=ids, ids_column=ids_column, metadata=metadata
    )
    memory_bytes(memory, *source.shape)  # refused now rather than after the build
    sample = query_sample(queries, source.shape[1], chosen)
    build_shard(
        path,
        source,
        chosen,
        ids=ids,
        metadata=metadata,
        text=text,
        queries=sample,
        build_memory=build_memory,
        overwrite=overwrite,
        resume=resume,
        watch=None if report is None else overall(report, source.shape[0]),
    )
    return open_index(path, memory=memory, threads=chosen.threads)
