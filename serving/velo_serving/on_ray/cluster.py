"""The cluster: starts the actors of a collection, finds them, searches them, exchanges them, stops them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from velo.errors import UnsupportedError, VeloError
from velo.options import Fusion
from velo.types import FusionName
from velo_serving.catalog.collection import Collection, Pin, read_collection
from velo_serving.catalog.launcher import LEAVE_S, About, Move, start_generation, superseded
from velo_serving.catalog.moving import Source, check_move, move_shard
from velo_serving.catalog.records import CollectionRecord, Place
from velo_serving.on_ray.actors import (
    ActorLauncher,
    answers_of,
    exists_error,
    first_generation,
    first_healths,
    first_line,
    get_actor,
    handles_of,
    join_ray,
    moves_of,
    newest,
    places_of,
    ray,
    ray_exceptions,
    start_local_ray,
    unknown,
)
from velo_serving.on_ray.vector_search import BatchStep
from velo_serving.protocol.errors import NoShardAnsweredError, ShardUnavailableError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.options import ServeOptions, takes_options
from velo_serving.protocol.requests import EffortKeywords, shows_effort
from velo_serving.protocol.types import FilterForm, Float32Matrix, Hits, ShardChannel, ShardHealth
from velo_serving.routing.backend import Backend
from velo_serving.routing.job import JOB_LIMITS, JobSearches
from velo_serving.routing.served import ServedCollection, check_version, served_collection
from velo_serving.transport.channel import SocketChannel, at
from velo_serving.transport.endpoint import Endpoint, ports_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

LAUNCHER = ActorLauncher()

#: How long a start that may be partial waits for all shards.
PARTIAL_S = 30.0

#: How long actors may take to close their indexes before they are ended.
CLOSE_S = 10.0


class Cluster(JobSearches):
    """The actors of one collection; ``start`` makes it, ``stop`` or ``with`` ends it.

    Attributes
    ----------
    collection : Collection
        What is served now.
    """

    def __init__(
        self,
        about: About,
        actors: Mapping[Place, Any],
        healths: Mapping[Place, ShardHealth],
        *,
        owner: bool = True,
    ) -> None:
        super().__init__(about.collection.name, self._served)
        self._about = about
        self._actors = dict(actors)
        self._healths = dict(healths)
        self._owner = owner

    @staticmethod
    @takes_options(ServeOptions, "shards", "ray")
    def start(collection: str | Path | Collection, options: ServeOptions) -> Cluster:
        """Start the actors of every shard and wait until each has opened its index.

        Parameters
        ----------
        collection : path or Collection
            A sharded build or a single index.
        **options
            As keywords, those of :class:`ServeOptions` that say how shards run.

        Returns
        -------
        Cluster

        Raises
        ------
        ShardNotHereError, PlacementError
            The folder of a shard is not on its node, or no node matches a pin in time.
        ClusterExistsError, PortInUseError
            Actors of that name run already, or no given port is free on a node.
        """
        return start(collection, options)

    @classmethod
    def connect(
        cls, name: str, *, address: str = "auto", timeout_s: float = 30.0, require_all: bool = True
    ) -> Cluster:
        """Find the running actors of a collection, which another process started; ``stop`` leaves them alone.

        Parameters
        ----------
        name : str
            Of the collection.
        address : str
            Of the Ray that they run on, unless this process is connected to one; "auto" finds the one that
            ``RAY_ADDRESS`` or this machine knows. No Ray is started.
        timeout_s : float
            For the answers of all shards.
        require_all : bool
            False: at least one shard must answer in this time, and the log names the others.

        Returns
        -------
        Cluster

        Raises
        ------
        UnknownCollectionError, PlacementError
            No actors of that name run, or no Ray at that address.
        """
        join_ray(address)
        about = newest(name, timeout_s)
        healths = first_healths(about, timeout_s, partial=not require_all)
        return cls(about, handles_of(about.specs()), healths, owner=False)

    @classmethod
    def end(cls, name: str, *, address: str = "auto") -> int:
        """End the actors of a collection, also those that another process started, and wait.

        Parameters
        ----------
        name : str
            Of the collection; all its generations end.
        address : str
            As in ``connect``.

        Returns
        -------
        int
            The number of actors.

        Raises
        ------
        UnknownCollectionError, PlacementError
            As in ``connect``.
        """
        join_ray(address)
        places = places_of(name)
        if not places:
            raise unknown(name)
        actors = handles_of(places)
        # A folder that was closed opens sooner; what was acknowledged is safe in any case.
        answers_of([actor.close.remote() for actor in actors.values()], CLOSE_S)
        LAUNCHER.end(actors)
        return len(places)

    @property
    def collection(self) -> Collection:
        """The collection that is served now."""
        return self._about.collection

    @property
    def actors(self) -> tuple[Any, ...]:
        """Handles of the actors, in the order of the shards and of their replicas."""
        return tuple(self._actors.values())

    def publish(
        self,
        path: str | Path,
        version: str,
        *,
        start_timeout_s: float = 120.0,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """Serve another build under this name, without an answer that is late, wrong or of two versions.

        Its actors start beside the present ones. When all are up, every gateway switches to them; the former
        ones end when no gateway is connected, or after half a minute. Meanwhile both take their memory. If
        the new actors do not start, nothing changes.

        Parameters
        ----------
        path : path
            A sharded build or a single index. It may have another number of shards.
        version : str
            The name of the build, different from the present one; answers contain it.
        start_timeout_s, on_progress
            As in ``start``.

        Raises
        ------
        InvalidArgumentError, VeloError
            The version is empty or served already, or as in ``start``.
        """
        name = self.collection.name
        before = newest(name, start_timeout_s)
        check_version(version, before.collection.version)
        described = before.of_build(path, version)
        number = 1 + max(place.generation for place in places_of(name))
        # What another process started must not end with this one.
        options = dataclasses.replace(before.options, detached=before.options.detached or not self._owner)
        about = About(described, options, number, secrets.token_urlsafe(32))
        actors, healths = start_generation(LAUNCHER, about, start_timeout_s, on_progress)
        former = handles_of(place for place in places_of(name) if place.generation != number)
        LAUNCHER.succeed(former, number)
        held, self._actors, self._healths, self._about = self._actors, actors, healths, about
        LAUNCHER.await_left(former, LEAVE_S)
        LAUNCHER.end(held | former)

    def backend(self, *, limits: RouterLimits | None = None) -> Backend:
        """Make a backend over these actors, for ``create_app``; closing it leaves the actors running.

        Parameters
        ----------
        limits : RouterLimits, optional

        Returns
        -------
        Backend
        """
        return Backend([served_collection(record, self, limits=limits) for record in self.records])

    @property
    def records(self) -> tuple[CollectionRecord, ...]:
        """The record of the collection, for gateways."""
        return (self._about.record(self._healths),)

    async def record(self, collection: str, generation: int) -> CollectionRecord:
        """Return the record of a generation."""

        def ask() -> CollectionRecord:
            places = [one for one in places_of(collection) if one.generation == generation]
            about, _ = first_generation(places, LEAVE_S)
            return about.record(first_healths(about, LEAVE_S))

        return await asyncio.to_thread(ask)

    async def exchange(self, collection: str, path: str, version: str) -> int:
        """Publish for a gateway."""
        await asyncio.to_thread(self.publish, path, version)
        return self._about.generation

    async def snapshot(self, collection: str, path: str) -> None:
        """Refuse: the shards are on several machines.

        Parameters
        ----------
        collection, path : str
        """
        raise UnsupportedError(f"Ray placed the shards of {collection}: `velo snapshot` copies each")

    async def move(self, collection: str, shard: str, path: str, pin: str | None = None) -> float:
        """Move a shard to another node or folder, while it is searched and written to.

        Parameters
        ----------
        collection, shard : str
            Names.
        path : str
            A folder of the new node: an absolute path, not there, or an empty folder.
        pin : str, optional
            The new node, ``resource:NAME`` or ``label:KEY=VALUE``; without it Ray chooses one.

        Returns
        -------
        float
            The seconds for which its writes waited.

        Raises
        ------
        BusyError, IndexExistsError, NoSpaceError, PlacementError, InvalidArgumentError, UnsupportedError
        """
        about = await asyncio.to_thread(newest, collection, LEAVE_S)
        check_move(about, shard)
        # What another process started must not end with this one.
        options = dataclasses.replace(about.options, detached=about.options.detached or not self._owner)
        place = Place(collection, about.generation, shard)
        there = await asyncio.to_thread(moves_of, place)
        serving = await asyncio.to_thread(get_actor, place)
        opened: dict[Any, SocketChannel] = {}
        where: dict[Any, Endpoint] = {}

        async def channel(actor: Any) -> ShardChannel:
            where[actor] = await actor.endpoint.remote()
            opened[actor] = SocketChannel(about.label(place), at(where[actor]))
            return opened[actor]

        def switch(after: About, new: Any) -> Any:
            # Ray ends an actor of ours as soon as its first handle is gone, even if gateways are connected.
            self._actors[place], former = LAUNCHER.replace(self._actors.get(place, serving), new)
            self._about = after
            return former

        to = Move(path, None if pin is None else Pin.parse(pin, shard), 1 + max(one.move for one in there))
        try:
            return await move_shard(
                LAUNCHER,
                dataclasses.replace(about, options=options),
                shard,
                to,
                serving,
                channel_of=channel,
                copy_of=lambda actor, source: _RemoteCopy(actor, where[serving], source),
                switch=switch,
            )
        finally:
            for one in opened.values():
                await one.close()

    async def locate(self, place: Place) -> Endpoint:
        """Return the endpoint of a shard; Ray is asked only if there is no connection."""
        try:
            known: Any = self._actors.get(place)
            if known is not None:
                try:
                    return cast("Endpoint", await known.endpoint.remote())
                except ray_exceptions.ActorDiedError:
                    del self._actors[place]  # for good; perhaps another one has its name by now
            actor: Any = await asyncio.to_thread(get_actor, place)
            return cast("Endpoint", await actor.endpoint.remote())
        except (ValueError, ray_exceptions.RayError) as error:
            if isinstance(error, ValueError | ray_exceptions.ActorDiedError):
                there = {one.generation for one in await asyncio.to_thread(places_of, place.collection)}
                if there and place.generation not in there:
                    # The oldest: one after it may still be starting, and it says itself what follows.
                    raise superseded(place, min(there)) from None
            raise ShardUnavailableError(
                f"shard {place.shard} cannot be reached", detail=first_line(error)
            ) from None

    def _served(self) -> ServedCollection:
        return served_collection(self.records[0], self, limits=JOB_LIMITS)

    def stop(self) -> None:
        """End the actors for good, unless another process started them; idempotent."""
        self.end_searches()
        actors, self._actors = self._actors, {}
        if self._owner and actors and ray.is_initialized():
            # What others published under this name ends, too.
            LAUNCHER.end(actors | handles_of(places_of(self.collection.name)))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


class _RemoteCopy:
    """The copy of a shard that its new actor makes."""

    def __init__(self, actor: Any, endpoint: Endpoint, source: Source) -> None:
        self._actor = actor
        self._endpoint = endpoint
        self._source = source

    async def copy(self, last: bool) -> int:
        try:
            return cast("int", await self._actor.copy.remote(self._endpoint, self._source.token, last))
        except ray_exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, VeloError) else error from None
        except ray_exceptions.RayError as error:
            raise ShardUnavailableError(
                "the new process of the shard died", detail=first_line(error)
            ) from None

    async def remove(self) -> None:
        with contextlib.suppress(ray_exceptions.RayError):
            await self._actor.remove_copy.remote()


def start(
    collection: str | Path | Collection, options: ServeOptions, *, partial: bool = False, **changes: Any
) -> Cluster:
    """Start as ``Cluster.start``; if ``partial``, shards that do not open in ``PARTIAL_S`` may be missing."""
    how = dataclasses.replace(options, **changes)
    ports_of(how.ports)  # here, before anything is started
    given = collection if isinstance(collection, Collection) else read_collection(collection, name=how.name)
    if not ray.is_initialized():
        start_local_ray()
    there = places_of(given.name)
    if there:
        raise exists_error(there[0])
    tls = None if how.tls is None else str(Path(how.tls).absolute())
    # What was only for this process does not travel.
    sent = ServeOptions(
        **how.opening,
        replicas=how.replicas,
        pin=how.pin,
        ports=how.ports,
        tls=tls,
        num_cpus=how.num_cpus,
        detached=how.detached,
    )
    about = About(given, sent, 1, secrets.token_urlsafe(32))
    timeout_s = min(how.start_timeout_s, PARTIAL_S) if partial else how.start_timeout_s
    return Cluster(about, *start_generation(LAUNCHER, about, timeout_s, how.on_progress, partial=partial))


class ClusterSearch(BatchStep):
    """Adds ``ids`` and ``distances`` to every batch, from the actors of a running collection.

    It opens no index: ``VectorSearch`` does so in each of its actors.

    Parameters
    ----------
    name : str
        Of the collection, as in ``Cluster.connect``.
    k : int
    column : str
        The column of the query vectors.
    filter : dict or str, optional
    text, fusion
        As in ``VectorSearch``.
    timeout_s : float
        For each batch.
    **effort
        `recall`, `list_size`, `exact`, as in ``velo.Index.search``.
    """

    @shows_effort
    def __init__(
        self,
        name: str,
        *,
        k: int = 10,
        column: str = "vector",
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        text: str | None = None,
        fusion: Fusion | FusionName | None = None,
        timeout_s: float = 60.0,
        **effort: Unpack[EffortKeywords],
    ) -> None:
        super().__init__(column, k, text, fusion, filter=filter, timeout_s=timeout_s, **effort)
        self._cluster = Cluster.connect(name)
        self._dim = self._cluster.records[0].dim

    def close(self) -> None:
        """Let go of the shards; they run on."""
        self._cluster.stop()

    def _search(self, queries: Float32Matrix, texts: tuple[str, ...] | None) -> Hits:
        found = self._cluster.search(queries, self._k, text=texts, fusion=self._fusion, **self._asked)
        if found.partial:  # a batch job wants all shards or an error, never a silent part
            reasons = "; ".join(f"{one['shard']}: {one['message']}" for one in found.failures)
            raise NoShardAnsweredError(
                f"{found.shards_answered} of {found.shards_total} shards answered ({reasons})"
            )
        counts = np.asarray(found.counts, np.int64)
        return Hits(found.ids, found.distances, counts, scores=found.scores)
