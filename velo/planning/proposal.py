"""What tuning proposes: the sets of options that were tried, and the one to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from velo.options import OpenTuning
from velo.planning.budgets import Costs
from velo.types import Memory, MetricName

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


@dataclass(frozen=True)
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
