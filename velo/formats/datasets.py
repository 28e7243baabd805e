"""Vectors in Parquet, in one file or many as Hugging Face lays them out, and in data sets of pyarrow."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from velo.errors import FormatError, InvalidArgumentError
from velo.formats.arrow import ColumnSource, sliced
from velo.types import AnyArray, PathLike

__all__ = ["DatasetSource", "ParquetSource", "dataset_of", "parquet_files"]


def parquet_files(given: Any) -> list[Path] | None:
    """The Parquet files of a folder, a pattern or a list of paths, in order; None for anything else.

    Raises
    ------
    InvalidArgumentError
        There are none.
    """
    if isinstance(given, list | tuple):
        if not given or not all(isinstance(one, str | os.PathLike) for one in given):
            return None
        wrong = [one for one in given if Path(one).suffix.lower() != ".parquet"]
        if wrong:
            raise InvalidArgumentError(
                f"{os.fspath(wrong[0])!r} is no Parquet file, and only those come in lists",
                argument="vectors",
            )
        return [Path(one) for one in given]
    if not isinstance(given, str | os.PathLike):
        return None
    path = Path(given)
    if path.is_dir():
        found = [one for one in path.rglob("*.parquet") if not _is_hidden(one.relative_to(path))]
    elif not path.exists() and glob.has_magic(str(path)):
        found = [Path(one) for one in glob.glob(str(path), recursive=True) if one.endswith(".parquet")]
    else:
        return None
    files = sorted(one for one in found if one.is_file())
    if not files:
        raise InvalidArgumentError(f"{path}: there is no Parquet file", argument="vectors", file=str(path))
    return files


def _is_hidden(path: Path) -> bool:
    """Whether a file is a program's own, as names that begin with a dot or an underscore say."""
    return any(part[0] in "._" for part in path.parts)


class ParquetSource(ColumnSource):
    """A list column of a Parquet file, or of several with the same columns, one after the other.

    Raises
    ------
    FormatError
        A file cannot be read, or has other columns than the first.
    """

    def __init__(self, files: Sequence[PathLike], column: str | None = None) -> None:
        import pyarrow.parquet as pq  # 9 MB

        self.files = [Path(one) for one in files]
        first: Any = None
        self._counts: list[int] = []
        for path in self.files:
            try:
                with pq.ParquetFile(str(path)) as file:
                    schema, count = file.schema_arrow.remove_metadata(), file.metadata.num_rows
            except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
                raise FormatError(f"{path}: {error.strerror or error}", file=str(path)) from error
            except (pa.ArrowException, OSError) as error:
                raise FormatError(f"{path}: not a whole Parquet file: {error}", file=str(path)) from error
            first = schema if first is None else first
            if schema != first:
                raise FormatError(
                    f"{path}: {_difference(first, schema)}, unlike in {self.files[0]}", file=str(path)
                )
            self._counts.append(count)
        self.schema = first
        super().__init__(self.files[0], first, sum(self._counts), column)

    def batches(self, rows: int) -> Iterator[Any]:
        """Yield the column file by file, one row group in memory."""
        for path in self.files:
            yield from self._column_of(path, rows)

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        """Yield the rows ``start`` to ``stop``; files before and behind them are not opened."""
        first = 0
        for path, count in zip(self.files, self._counts, strict=True):
            begin, end = max(start - first, 0), min(stop - first, count)
            if begin < end:
                try:
                    yield from sliced(self._column_of(path, rows), self.shape[1], rows, begin, end, str(path))
                except (pa.ArrowException, OSError) as error:
                    raise FormatError(f"{path}: {error}", file=str(path)) from error
            first += count

    def _column_of(self, path: Path, rows: int) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=[self.column]):
                yield batch.column(0)

    def names(self) -> list[str]:
        """The names of all columns."""
        return list(self.schema.names)

    def table(self, names: list[str]) -> Any:
        """Some columns, whole."""
        import pyarrow.parquet as pq

        tables = []
        for path in self.files:
            try:
                with pq.ParquetFile(path) as file:
                    tables.append(file.read(columns=names))
            except (pa.ArrowException, OSError) as error:
                raise FormatError(f"{path}: {error}", file=str(path)) from error
        return pa.concat_tables(tables)


def _difference(first: Any, other: Any) -> str:
    """The first difference between two schemas."""
    for field in first:
        if other.get_field_index(field.name) < 0:
            return f"there is no column {field.name!r}"
        if other.field(field.name).type != field.type:
            return f"the column {field.name!r} is {other.field(field.name).type}, not {field.type}"
    more = [name for name in other.names if name not in first.names]
    return f"there is a column {more[0]!r}" if more else "columns stand in another order"


def dataset_of(given: Any) -> Any:
    """A data set of ``pyarrow.dataset``, or None for anything else, without importing it."""
    module = sys.modules.get("pyarrow.dataset")
    return given if module is not None and isinstance(given, module.Dataset) else None


class DatasetSource(ColumnSource):
    """A list column of a data set of ``pyarrow.dataset``, fragment by fragment."""

    def __init__(self, dataset: Any, column: str | None = None) -> None:
        self.dataset = dataset
        super().__init__("the data set", dataset.schema, int(dataset.count_rows()), column)

    def batches(self, rows: int) -> Iterator[Any]:
        """Yield the column, a batch or two in memory."""
        for batch in self.dataset.to_batches(
            columns=[self.column], batch_size=rows, batch_readahead=1, fragment_readahead=1
        ):
            yield batch.column(0)

    def names(self) -> list[str]:
        """The names of all columns."""
        return list(self.dataset.schema.names)

    def table(self, names: list[str]) -> Any:
        """Some columns, whole."""
        try:
            return self.dataset.to_table(columns=names)
        except (pa.ArrowException, OSError) as error:
            raise self.malformed(str(error)) from error
