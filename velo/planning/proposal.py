"""What tuning proposes: the sets of options that were tried, and the one to take."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import Any, Final

from velo.options import OpenTuning
from velo.planning.budgets import Costs
from velo.planning.plot import draw_curves
from velo.planning.sample import TunedPoint
from velo.results import html_table, size_text
from velo.types import Memory, MetricName, PathLike

__all__ = ["Proposal", "TunedCandidate"]


@dataclass(frozen=True)
class TunedCandidate:
    """One set of build options, and what an index of all rows built with it would be like.

    Attributes
    ----------
    degree, memory_bits, record_bits, links_built : int
        Options of the build.
    plan : {"links_in_memory", "links_on_disk"}
        What an open within the budget would choose,
    links_kept : int
        and the links a vertex that it would keep in memory.
    page_links : bool
        Whether pages hold links as well: only for links on disk.
    memory_bytes : int
        Codes, links and page directory.
    reached : bool
        False where no list tried found the recall on the sample; all that follows is of the longest one then.
    list_size, recall, reads, rounds, estimates : float
        Of a query that was never seen before, by what the sample told, for all rows.
    sample_list_size, sample_reads, sample_rounds, sample_estimates : float
        The same, as they were on the sample.
    latency_us, queries_per_s : float
        Of a query that is alone, and of all threads.
    disk_bytes_per_vector : float
        Of all files, but for metadata.
    build_s : float
        For all rows, from the build over the sample as n·log n.
    sample_build_s : float
    sample_points : tuple of TunedPoint
        What searches of the sample were measured to be like, one list after another, until the recall was
        found. :meth:`Proposal.plot` draws them.
    """

    degree: int
    memory_bits: int
    record_bits: int
    links_built: int
    plan: str
    links_kept: int
    page_links: bool
    memory_bytes: int
    reached: bool
    list_size: float
    recall: float
    reads: float
    rounds: float
    estimates: float
    sample_list_size: float
    sample_reads: float
    sample_rounds: float
    sample_estimates: float
    latency_us: float
    queries_per_s: float
    disk_bytes_per_vector: float
    build_s: float
    sample_build_s: float
    sample_points: tuple[TunedPoint, ...]


@dataclass(frozen=True, repr=False)
class Proposal:
    """What :func:`velo.tune` proposes.

    Attributes
    ----------
    chosen : TunedCandidate
        The most queries a second at the recall. Among those within 8 % of it, which a sample cannot tell
        apart, the degree nearest to the default one, then the bits that ``search_memory=`` of a build would
        choose, then the lowest latency.
    queries_in_flight : int
        Queries that a worker should interleave: ⌈2·I/T⌉ (VeloANN, §3.1), I the wait for a round of reads that
        is alone, T the processor time between two of them; doubled, up to 64, as long as the sample is
        answered faster, since waits grow as the device is kept busy.
    candidates : tuple of TunedCandidate
        All that were tried, by bits and degree.
    n, dim : int
    metric : str
    memory : int, float or str
        As it was asked for,
    budget_bytes : int
        and in bytes.
    recall, k : float, int
    sample_rows, query_count : int
        Rows that were indexed, and others that were searched for.
    costs : Costs
        What this machine takes, with the chosen bits.
    """

    chosen: TunedCandidate
    queries_in_flight: int
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
    costs: Costs

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The candidates as rows of text, the heads of the columns first; ``*`` marks the chosen one."""
        return [_HEADS, *(_cells(one, one is self.chosen) for one in self.candidates)]

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
        return {"memory": self.memory, "tuning": OpenTuning(queries_in_flight=self.queries_in_flight)}

    def build_line(self, vectors: str = "VECTORS", path: str = "INDEX") -> str:
        """Write the command that builds with the chosen options.

        Parameters
        ----------
        vectors, path : str
            What stands in the command for the file and the index.

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
            What stands in the call for the index.

        Returns
        -------
        str
        """
        memory = f'"{self.memory}"' if isinstance(self.memory, str) else self.memory
        return (
            f'velo.open("{path}", memory={memory}, '
            f"tuning=velo.OpenTuning(queries_in_flight={self.queries_in_flight}))"
        )

    def plot(self, to: PathLike | Any = None) -> Any:
        """Draw queries a second over recall, as measured on the sample. Needs matplotlib.

        Each set of options that was tried is a line, and each list that it was searched with is a point.

        Parameters
        ----------
        to : path or matplotlib.axes.Axes, optional
            The file to write, in a format of its suffix (``.png``, ``.svg``, ``.pdf``), or axes to draw into.
            Without it a new figure is drawn.

        Returns
        -------
        matplotlib.axes.Axes
            What was drawn into; its ``figure`` is the whole picture.

        Raises
        ------
        MissingDependencyError
            matplotlib is not installed.
        InvalidArgumentError, NoSpaceError, PermissionDeniedError
            The file cannot be written, or its suffix names no format.
        """
        curves = {
            f"degree {one.degree}, {one.memory_bits} + {one.record_bits} bits": [
                (point.recall, point.queries_per_s) for point in one.sample_points
            ]
            for one in (self.chosen, *(other for other in self.candidates if other is not self.chosen))
        }
        title = f"{self.sample_rows:,} sampled rows × {self.dim}, {self.costs.threads} threads"
        return draw_curves(curves, to, title=title, k=self.k, recall=self.recall)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON.

        Returns
        -------
        dict
        """
        return {
            **asdict(self),
            "build_options": self.build_options,
            "open_options": {"memory": self.memory, "queries_in_flight": self.queries_in_flight},
        }


_HEADS: Final = (
    *("", "degree", "bits", "links", "list", "recall", "reads", "rounds"),
    *("QPS", "ms", "memory", "disk B", "build s"),
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
        f"{one.queries_per_s:,.0f}",
        f"{one.latency_us / 1e3:.2f}",
        size_text(one.memory_bytes),
        f"{one.disk_bytes_per_vector:.0f}",
        f"{one.build_s:,.0f}",
    )
