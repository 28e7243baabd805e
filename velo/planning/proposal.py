"""Results of tuning: the options that were tried, and the best of them."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import Any, Final

from velo.planning.sample import TunedPoint
from velo.results import html_table, size_text
from velo.types import Memory, MetricName

__all__ = ["Proposal", "TunedCandidate"]


@dataclass(frozen=True)
class TunedCandidate:
    """One set of build options, and its measurements on the sample.

    Attributes
    ----------
    degree, memory_bits, record_bits, links_built : int
        Options of the build.
    plan : {"links_in_memory", "links_on_disk"}
        The plan of an open of all rows within the budget.
    links_kept : int
        Links a vertex that such an open keeps in memory.
    page_links : bool
        Whether pages hold links as well: needed for links on disk only.
    memory_bytes : int
        Codes, links and page directory of all rows.
    disk_bytes_per_vector : float
        Of all files except metadata, with all rows.
    reached : bool
        False if no list found the recall on the sample; the following fields are those of the longest then.
    list_size, recall, reads, rounds, estimates, busy_us : float
        Of searches of the sample, as in :class:`TunedPoint`. More rows take somewhat more of each.
    cost_us : float
        The largest of a query's shares of three times: of the workers, of the device that answers reads, and
        of the GPU. The smallest is the best.
    points : tuple of TunedPoint
        Searches with one list size after another.
    gpu_us : float
        Time of the GPU, as in :class:`TunedPoint`.
    gpu_bytes : int
        Device memory of codes and links of all rows; 0 if the CPU navigates.
    """

    degree: int
    memory_bits: int
    record_bits: int
    links_built: int
    plan: str
    links_kept: int
    page_links: bool
    memory_bytes: int
    disk_bytes_per_vector: float
    reached: bool
    list_size: float
    recall: float
    reads: float
    rounds: float
    estimates: float
    busy_us: float
    cost_us: float
    points: tuple[TunedPoint, ...]
    gpu_us: float = 0.0
    gpu_bytes: int = 0


@dataclass(frozen=True, repr=False)
class Proposal:
    """The result of :func:`velo.tune`.

    Attributes
    ----------
    chosen : TunedCandidate
        The candidate with the cheapest queries at the recall. Among those within 8 % of it, a difference that
        a sample does not show, the degree nearest to the default one, then the bits that ``search_memory=``
        of a build chooses, then the fewest rounds.
    candidates : tuple of TunedCandidate
        All candidates, by bits and degree.
    n, dim : int
    metric : str
    memory : int, float or str
        As given.
    budget_bytes : int
        The same in bytes.
    recall, k : float, int
    sample_rows, query_count : int
        Indexed rows, and held-out rows that were searched for.
    threads : int
        Workers of the searches.
    reads_per_s : float
        Page reads a second of the device, from 32 threads.
    device : str
        As given.
    """

    chosen: TunedCandidate
    candidates: tuple[TunedCandidate, ...]
    n: int
    dim: int
    metric: MetricName
    memory: Memory
    budget_bytes: int
    recall: float
    k: int
    sample_rows: int
    query_count: int
    threads: int
    reads_per_s: float
    device: str = "cpu"

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The candidates as rows of text, column headings first; ``*`` marks the chosen one."""
        rows = [_HEADS, *(_cells(one, one is self.chosen) for one in self.candidates)]
        if not any(one.gpu_bytes for one in self.candidates):
            return rows
        of_gpu = [_GPU_HEADS, *map(_gpu_cells, self.candidates)]
        return [own + more for own, more in zip(rows, of_gpu, strict=True)]

    def __repr__(self) -> str:
        rows = self.table
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([*lines, self.build_line(), self.open_line()])

    def _repr_html_(self) -> str:
        heads, *rows = self.table
        lines = "\n".join([self.build_line(), self.open_line()])
        return f"{html_table(heads, rows)}<pre>{html.escape(lines)}</pre>"

    @property
    def build_options(self) -> dict[str, Any]:
        """Keyword arguments of :func:`velo.build`."""
        one = self.chosen
        return {
            "metric": self.metric,
            "degree": one.degree,
            "links_kept": one.links_built,
            "memory_bits": one.memory_bits,
            "record_bits": one.record_bits,
            "page_links": one.page_links,
        }

    @property
    def open_options(self) -> dict[str, Any]:
        """Keyword arguments of :func:`velo.open`."""
        return {"memory": self.memory} | ({"device": self.device} if self.chosen.gpu_bytes else {})

    def build_line(self, vectors: str = "VECTORS", path: str = "INDEX") -> str:
        """Write the command that builds with the chosen options.

        Parameters
        ----------
        vectors, path : str
            Names of the file and the index in the command.

        Returns
        -------
        str
        """
        options = self.build_options
        in_pages = options.pop("page_links")
        flags = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
        flags.append("--page-links" if in_pages else "--no-page-links")
        return f"velo build {vectors} {path} {' '.join(flags)}"

    def open_line(self, path: str = "INDEX") -> str:
        """Write the call that opens with the chosen options.

        Parameters
        ----------
        path : str
            Name of the index in the call.

        Returns
        -------
        str
        """
        options = [
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
            for name, value in self.open_options.items()
        ]
        return f'velo.open("{path}", {", ".join(options)})'

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON.

        Returns
        -------
        dict
        """
        return {**asdict(self), "build_options": self.build_options, "open_options": self.open_options}


_HEADS: Final = (
    *("", "degree", "bits", "links", "list", "recall", "reads", "rounds"),
    *("estimates", "busy µs", "memory", "disk B"),
)


def _cells(one: TunedCandidate, chosen: bool) -> tuple[str, ...]:
    return (
        "*" if chosen else "",
        str(one.degree),
        f"{one.memory_bits} + {one.record_bits}",
        str(one.links_kept) if one.plan == "links_in_memory" else "disk",
        f"{one.list_size:.0f}",
        f"{one.recall:.3f}",
        f"{one.reads:.1f}",
        f"{one.rounds:.1f}",
        f"{one.estimates:,.0f}",
        f"{one.busy_us:,.0f}",
        size_text(one.memory_bytes),
        f"{one.disk_bytes_per_vector:.0f}",
    )


_GPU_HEADS: Final = ("GPU µs", "GPU memory")


def _gpu_cells(one: TunedCandidate) -> tuple[str, ...]:
    return (f"{one.gpu_us:,.1f}", size_text(one.gpu_bytes)) if one.gpu_bytes else ("", "CPU")
