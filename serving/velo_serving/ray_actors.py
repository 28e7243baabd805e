"""Shards as Ray actors, and the cluster that starts and stops them. The only file that imports Ray.

Ray places processes, restarts them and says where they listen. Queries go over connections of our own
(``wire``): what a shard does is in ``shard.py``; who waits for whom and what happens when an actor dies is in
``router.py``.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

# Before Ray is imported: it reads these once. Nothing here reports to anyone; and to ask an actor that died
# where it is fails after about one second instead of two.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "50")

import numpy as np
import numpy.typing as npt

from velo.errors import DimensionMismatchError, InvalidArgumentError, MissingDependencyError

try:
    import ray
    from ray import exceptions as ray_exceptions
except ImportError as error:
    raise MissingDependencyError("Ray is not installed; pip install 'veloann[serving]'") from error

from velo.results import RangeResult, SearchResult
from velo_serving.answers import result_of
from velo_serving.backend import Backend, ServedCollection
from velo_serving.collection import Collection, Pin, read_collection
from velo_serving.errors import (
    ClusterExistsError,
    PlacementError,
    ShardUnavailableError,
    ShuttingDownError,
    UnknownCollectionError,
)
from velo_serving.local_backend import check_shard, split_memory
from velo_serving.router import Router, RouterLimits
from velo_serving.router_thread import JOB_LIMITS, RouterThread
from velo_serving.shard import Shard, ShardSpec
from velo_serving.types import FilterForm, SearchRequest, ShardHealth
from velo_serving.wire.channel import SocketChannel
from velo_serving.wire.endpoint import Endpoint, abstract_path
from velo_serving.wire.server import ShardHost, ShardServer

__all__ = ["Cluster", "ShardActor"]

NAMESPACE = "velo"

#: Calls of Ray's that an actor takes at once: they ask how and where it is, never for a search.
CALLS_AT_ONCE = 8

#: A shard takes this much of a node's resource; the resource says where, not how many.
PIN_SHARE = 0.001


class ShardActor:
    """A ``Shard`` as an actor: a shell that says where the shard listens, and how it is."""

    def __init__(self, spec: ShardSpec, collection: Collection, token: str) -> None:
        self._collection = collection
        self._shard = Shard(spec)
        self._shard.health()  # opens the index; where that fails, the cluster hears why from health()
        self._host = ShardHost(ShardServer(self._shard, token=token, version=collection.version))
        util: Any = ray.util
        self._endpoint = self._host.start(path=abstract_path(spec.name), host=util.get_node_ip_address())

    async def endpoint(self) -> Endpoint:
        """Where the shard listens."""
        return self._endpoint

    async def health(self) -> ShardHealth:
        """Say how the shard is."""
        return dataclasses.replace(self._shard.health(), version=self._collection.version)

    async def collection(self) -> Collection:
        """What the shard is a part of."""
        return self._collection

    async def close(self) -> None:
        """Release the index."""
        self._host.close()
        self._shard.close()


def _remote_class() -> Any:
    """Return the actor class, restarted whenever it dies."""
    make: Any = ray.remote
    return make(max_restarts=-1, max_task_retries=0, max_concurrency=CALLS_AT_ONCE)(ShardActor)


def _channel(name: str, actor: Any) -> SocketChannel:
    """The way to a shard: Ray is asked where it is when there is no connection, and for nothing else."""

    async def locate() -> Endpoint:
        try:
            return cast("Endpoint", await actor.endpoint.remote())
        except ray_exceptions.RayError as error:
            raise ShardUnavailableError(f"shard {name} cannot be reached: {_first_line(error)}") from None

    return SocketChannel(name, locate)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Cluster:
    """The actors of one collection; ``start`` makes it, ``stop`` or ``with`` ends it.

    Attributes
    ----------
    collection : Collection
    """

    def __init__(
        self,
        collection: Collection,
        actors: Sequence[Any],
        healths: Sequence[ShardHealth],
        *,
        owner: bool = True,
    ) -> None:
        self.collection = collection
        self._actors = list(actors)
        self._healths = tuple(healths)
        self._owner = owner
        self._caller: RouterThread | None = None

    @classmethod
    def start(
        cls,
        collection: str | Path | Collection,
        *,
        name: str | None = None,
        pin: str | Mapping[str, str] | None = None,
        memory: int | float | str | None = None,
        threads: int | None = None,
        io: str = "auto",
        plan: str = "auto",
        num_cpus: float = 0,
        detached: bool = False,
        start_timeout_s: float = 120.0,
        progress: Callable[[str], None] | None = None,
    ) -> Cluster:
        """Start one actor a shard and wait until each has opened its index.

        Parameters
        ----------
        collection : path or Collection
            A sharded build or a single index.
        name : str, optional
            Name of the collection; its actors are ``velo-NAME-shard-0`` and so on, in namespace ``velo``.
        pin : str or mapping, optional
            Where shards run: ``"resource:NAME"`` or ``"label:KEY=VALUE"``, in which ``{shard}`` stands for
            the shard's name; or one such text for each shard's name. It goes before what ``collection.json``
            says. Without any pin Ray may choose any node: right only where all nodes see the same folders.
        memory, threads, io, plan
            As in ``velo.open``; ``memory`` is for the whole collection and divided by rows.
        num_cpus : float
            What Ray reserves a shard. Nothing unless told otherwise: a shard stands where its disk is, and
            Ray's counting of processors should not keep it from there.
        detached : bool
            Whether the actors outlive this process.
        start_timeout_s : float
            Time for all shards to open.
        progress : callable, optional
            Called with a line of text as shards come up.

        Raises
        ------
        ShardNotHereError
            A shard's folder does not exist on the node where it was started.
        PlacementError
            No node matches a pin, or not in time.
        ClusterExistsError
            Actors of that name run already.

        Returns
        -------
        Cluster
        """
        described = (
            collection if isinstance(collection, Collection) else read_collection(collection, name=name)
        )
        if not ray.is_initialized():
            _start_local_ray()
        budgets = split_memory(described, memory)
        remote_class = _remote_class()
        token = secrets.token_urlsafe(32)
        actors: list[Any] = []
        try:
            for entry, budget in zip(described.shards, budgets, strict=True):
                spec = entry.spec(memory=budget, threads=threads, io=io, plan=plan)
                place = _pin_of(pin, entry.name) or entry.pin
                options = _placement(place) | {
                    "name": _actor_name(described.name, entry.name),
                    "namespace": NAMESPACE,
                    "lifetime": "detached" if detached else None,
                    "num_cpus": num_cpus,
                }
                try:
                    actors.append(remote_class.options(**options).remote(spec, described, token))
                except ValueError as error:
                    if "already" not in str(error):
                        raise InvalidArgumentError(_first_line(error)) from None
                    raise ClusterExistsError(
                        f"actor {options['name']} runs already; stop that cluster or give another name",
                        argument="name",
                    ) from None
            healths = _await_shards(described, actors, start_timeout_s, progress)
        except BaseException:
            _kill(actors)
            raise
        return cls(described, actors, healths)

    @classmethod
    def connect(cls, name: str, *, timeout_s: float = 30.0) -> Cluster:
        """Find the running actors of a collection, which another process started; ``stop`` leaves them alone.

        Parameters
        ----------
        name : str
            Of the collection.
        timeout_s : float
            Time for all shards to say how they are.

        Returns
        -------
        Cluster

        Raises
        ------
        UnknownCollectionError
            No actors of that name run.
        """
        try:
            first = ray.get_actor(_actor_name(name, "0"), namespace=NAMESPACE)
            described = cast("Collection", ray.get(first.collection.remote(), timeout=timeout_s))
            actors = [
                ray.get_actor(_actor_name(name, entry.name), namespace=NAMESPACE)
                for entry in described.shards
            ]
        except ValueError:
            raise UnknownCollectionError(f"no actors of a collection {name!r} run here") from None
        except ray_exceptions.RayError as error:
            raise ShardUnavailableError(
                f"shard 0 of {name!r} does not answer: {_first_line(error)}"
            ) from None
        return cls(described, actors, _await_shards(described, actors, timeout_s), owner=False)

    @property
    def actors(self) -> tuple[Any, ...]:
        """Handles of the actors, in the order of the shards."""
        return tuple(self._actors)

    def backend(self, *, limits: RouterLimits | None = None) -> Backend:
        """Make a backend over these actors, for ``create_app``; closing it leaves the actors running.

        Parameters
        ----------
        limits : RouterLimits, optional
            Of the router; the default suits actors.

        Returns
        -------
        Backend
        """
        collection = self.collection
        first = self._healths[0]
        served = ServedCollection(
            collection.name,
            sum(health.n for health in self._healths),
            first.dim,
            first.metric,
            self._router(limits),
        )
        return Backend([served])

    def _router(self, limits: RouterLimits | None = None) -> Router:
        channels = [
            _channel(entry.name, actor)
            for entry, actor in zip(self.collection.shards, self._actors, strict=True)
        ]
        identities = [health.identity for health in self._healths]
        return Router(self.collection.name, channels, limits=limits, identities=identities)

    def search(
        self,
        queries: npt.ArrayLike,
        k: int = 10,
        *,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        recall: float | None = None,
        list_size: int | None = None,
        return_metadata: Sequence[str] | None = None,
        group_by: str | None = None,
        group_size: int = 1,
        timeout_s: float = 60.0,
    ) -> SearchResult:
        """Search all shards from a job, without a gateway.

        Parameters
        ----------
        queries : array of shape (query_count, dim)
        k, filter, recall, list_size, return_metadata, group_by, group_size
            As in ``velo.Index.search``.
        timeout_s : float
            Shards that have not answered by then are missing from the answer.

        Returns
        -------
        SearchResult
            As of ``velo.Index.search``; ``shards_answered``, ``partial`` and ``failures`` tell of the shards.
        """
        request = _request(
            queries,
            k,
            filters=None if filter is None else (filter,),
            recall=recall,
            list_size=list_size,
            return_metadata=None if return_metadata is None else tuple(return_metadata),
            timeout_s=timeout_s,
            group_by=group_by,
            group_size=group_size,
        )
        found = self._ask(request, timeout_s)
        assert isinstance(found, SearchResult)
        return found

    def range_search(
        self,
        queries: npt.ArrayLike,
        radius: float,
        *,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.range_search
        limit: int = 10_000,
        recall: float | None = None,
        list_size: int | None = None,
        return_metadata: Sequence[str] | None = None,
        timeout_s: float = 60.0,
    ) -> RangeResult:
        """Find all within a distance of each query in all shards; ``limited`` says where there are more.

        Parameters
        ----------
        queries : array of shape (query_count, dim)
        radius, filter, limit, recall, list_size, return_metadata
            As in ``velo.Index.range_search``; the limit is for all shards together.
        timeout_s : float
            Shards that have not answered by then are missing from the answer.

        Returns
        -------
        Answer
        """
        request = _request(
            queries,
            limit,
            filters=None if filter is None else (filter,),
            recall=recall,
            list_size=list_size,
            return_metadata=None if return_metadata is None else tuple(return_metadata),
            timeout_s=timeout_s,
            radius=float(radius),
        )
        found = self._ask(request, timeout_s)
        assert isinstance(found, RangeResult)
        return found

    def _ask(self, request: SearchRequest, timeout_s: float) -> SearchResult | RangeResult:
        if not self._actors:
            raise ShuttingDownError(f"the cluster of {self.collection.name!r} was stopped")
        if self._caller is None:
            self._caller = RouterThread(lambda: self._router(JOB_LIMITS))
        started = time.perf_counter()
        answer = self._caller.search(request, timeout_s)
        return result_of(answer, request, (time.perf_counter() - started) * 1000)

    def stop(self) -> None:
        """End the actors for good, unless another process started them; twice is once."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.close()
        actors, self._actors = self._actors, []
        if self._owner:
            _kill(actors)

    def __enter__(self) -> Cluster:
        """Return this cluster."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()


def _actor_name(collection: str, shard: str) -> str:
    return f"velo-{collection}-shard-{shard}"


def _request(queries: npt.ArrayLike, k: int, **options: Any) -> SearchRequest:
    matrix = np.ascontiguousarray(queries, dtype=np.float32)
    if matrix.ndim != 2:
        raise DimensionMismatchError(f"queries of shape {matrix.shape} are no matrix", argument="queries")
    if k < 1:
        raise InvalidArgumentError(f"k must be at least 1, not {k}", argument="k")
    return SearchRequest(matrix, k, **options)


def _pin_of(pin: str | Mapping[str, str] | None, shard: str) -> Pin | None:
    text = pin.get(shard) if isinstance(pin, Mapping) else pin
    return None if text is None else Pin.parse(text, shard)


def _placement(pin: Pin | None) -> dict[str, Any]:
    if pin is None:
        return {}
    if pin.label is not None:
        return {"label_selector": {pin.label[0]: pin.label[1]}}
    return {"resources": {pin.resource: PIN_SHARE}}


def _await_shards(
    collection: Collection,
    actors: Sequence[Any],
    timeout_s: float,
    progress: Callable[[str], None] | None = None,
) -> list[ShardHealth]:
    """Wait for all at once: the slowest shard sets the time, not their sum."""
    replies = [actor.health.remote() for actor in actors]
    deadline = time.monotonic() + timeout_s
    ready: list[Any] = []
    while len(ready) < len(replies) and time.monotonic() < deadline:
        if progress is not None:
            progress(f"{len(ready)} of {len(replies)} shards are up")
        wanted = len(ready) + 1
        ready, _ = ray.wait(replies, num_returns=wanted, timeout=max(0.0, deadline - time.monotonic()))
    late = [entry.name for entry, one in zip(collection.shards, replies, strict=True) if one not in ready]
    if late:
        raise PlacementError(
            f"shards {', '.join(late)} of {collection.name!r} did not start within {timeout_s:g} s: "
            "is there a node with the resource or label that they are pinned to, and with enough processors?",
            argument="pin",
        )
    healths: list[ShardHealth] = []
    for entry, one in zip(collection.shards, replies, strict=True):
        try:
            health = cast("ShardHealth", ray.get(one))
        except ray_exceptions.RayError as error:
            raise ShardUnavailableError(f"shard {entry.name} did not start: {_first_line(error)}") from None
        if health.failure is not None:
            raise health.failure.to_error()
        check_shard(collection, health, entry.name)
        healths.append(health)
    return healths


def _kill(actors: Sequence[Any]) -> None:
    if not ray.is_initialized():
        return
    for actor in actors:
        ray.kill(actor, no_restart=True)


def _start_local_ray() -> None:
    """Start a Ray of this machine's own: on the loopback address, without a dashboard."""
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
    )


@contextmanager
def ray_session(address: str | None = None) -> Iterator[None]:
    """Be connected to Ray for a while; a connection that exists already is used and kept.

    Parameters
    ----------
    address : str, optional
        Of a running cluster, "auto" to find one; default: a Ray of this machine's own, without a dashboard.
    """
    if ray.is_initialized():
        yield
        return
    try:
        if address is None:
            _start_local_ray()
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # of many kinds, some of them plain: a user wants the line that says why
        what = "Ray does not start here" if address is None else f"there is no Ray at {address!r}"
        hint = "; velo serve --processes does without Ray" if address is None else ""
        raise PlacementError(f"{what}: {_first_line(error)}{hint}", argument="address") from None
    try:
        yield
    finally:
        ray.shutdown()
