"""HDF5 files of ann-benchmarks: data sets ``train``, ``test``, ``neighbors``, ``distances``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from velo.errors import MissingDependencyError
from velo.formats.source import FileSource
from velo.types import AnyArray, PathLike

__all__ = ["Hdf5Source", "write_hdf5"]


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError("HDF5 files need h5py: pip install h5py") from error
    return h5py


class Hdf5Source(FileSource):
    """A two-dimensional data set of an HDF5 file: ``"train"`` (base vectors) or ``"test"`` (queries)."""

    def __init__(self, path: PathLike, dataset: str = "train") -> None:
        super().__init__(path)
        self.dataset = dataset
        h5py = _h5py()
        try:
            with h5py.File(path, "r") as file:
                if dataset not in file:
                    raise self.malformed(f"no data set {dataset!r}; there are: {', '.join(sorted(file))}")
                shape = file[dataset].shape
                self._dtype: np.dtype[Any] = np.dtype(file[dataset].dtype)
        except OSError as error:
            raise self.malformed(f"not a whole HDF5 file: {error}") from error
        if len(shape) != 2:
            raise self.malformed(f"the data set {dataset!r} has the shape {shape}, not (n, d)")
        self._shape = int(shape[0]), int(shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """(row_count, dim)."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._dtype

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        """Yield the rows ``start`` to ``stop``."""
        with _h5py().File(self.path, "r") as file:
            dataset = file[self.dataset]
            for row in range(start, stop, rows):
                try:
                    chunk = np.asarray(dataset[row : min(row + rows, stop)])
                except OSError as error:
                    raise self.malformed(str(error), row=row) from error
                yield chunk


def write_hdf5(path: PathLike, datasets: dict[str, AnyArray], *, distance: str = "euclidean") -> None:
    """Write arrays as an ann-benchmarks file.

    Parameters
    ----------
    path : path
    datasets : dict of str to ndarray
        ``train``, ``test``, ``neighbors``, ``distances``, as far as there are.
    distance : str
        The file's ``distance`` attribute.
    """
    with _h5py().File(path, "w") as file:
        file.attrs["distance"] = distance
        for name, array in datasets.items():
            file.create_dataset(name, data=array)
