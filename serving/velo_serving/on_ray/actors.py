"""Shards as Ray actors: start, placement and lookup. Only this module and ``serve_app`` import Ray.

Ray places processes, restarts them and knows their endpoints; queries use connections of ``transport``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

# Before Ray is imported: it reads these once. Nothing here reports to anyone; to ask an actor that died where
# it is fails after about one second instead of two; and a process goes on for a day without Ray's own service
# (GCS), where Ray's default ends it after a minute: queries need none.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "50")
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")

from velo.errors import InvalidArgumentError, MissingDependencyError, VeloError

try:
    import ray
    from ray import exceptions as ray_exceptions
    from ray._private import services
except ImportError as error:
    raise MissingDependencyError("Ray is not installed; pip install 'veloann[serving]'") from error

from velo_serving.catalog.collection import Pin
from velo_serving.catalog.launcher import LEAVE_S, About, log_missing, share_of_cores
from velo_serving.catalog.moving import ShardCopy, Source
from velo_serving.catalog.records import Place
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import (
    ClusterExistsError,
    PlacementError,
    ShardUnavailableError,
    UnknownCollectionError,
)
from velo_serving.protocol.types import Failure, ShardHealth
from velo_serving.shard.shard import Shard
from velo_serving.transport.channel import SocketChannel, at
from velo_serving.transport.endpoint import Endpoint, abstract_path
from velo_serving.transport.server import ShardHost, ShardServer

#: Other modules of the package import Ray from here.
__all__ = ["ray", "ray_exceptions"]

NAMESPACE = "velo"

#: Calls of Ray's that an actor takes at once: they ask how and where it is, never for a search.
CALLS_AT_ONCE = 64

#: A shard takes this much of a node's resource; the resource says where, not how many.
PIN_SHARE = 0.001

#: How long a start that failed waits for the end of what it had started, at most.
END_S = 10.0

#: How often actors are asked whether gateways have left them.
LOOK_S = 0.1

#: How often errors of Ray's are asked for where there are none.
ERRORS_S = 0.5

#: By when a Ray that is to be joined must take a connection.
JOIN_S = 5.0

#: How long an actor waits to hear on which nodes the others are.
NEIGHBORS_S = 10.0


class ShardActor:
    """A ``Shard`` as an actor.

    It opens its index on the first call, not when it is made: by then all actors have nodes, and those of one
    node share its cores.
    """

    def __init__(self, about: About, place: Place, spec: ShardSpec) -> None:
        self._about = about
        self._place = place
        self._spec = spec
        self._opening = asyncio.Lock()
        self._shard: Shard | None = None
        self._server: ShardServer | None = None
        self._endpoint: Endpoint | None = None
        self._host: ShardHost | None = None
        self._copying: ShardCopy | None = None

    async def node(self) -> str:
        return _node_id()

    async def endpoint(self) -> Endpoint:
        """The endpoint of the shard: if it was moved from here, that of the actor to which it was moved."""
        shard = await self._opened()
        if shard.moved:
            after = [
                one for one in await asyncio.to_thread(moves_of, self._place) if one.move > self._place.move
            ]
            if after:
                actor = await asyncio.to_thread(get_actor, after[0])
                return cast("Endpoint", await actor.endpoint.remote())
        assert self._endpoint is not None
        return self._endpoint

    async def health(self) -> ShardHealth:
        try:
            shard = await self._opened()
        except VeloError as error:  # it cannot listen
            return ShardHealth(node=_node_id(), pid=os.getpid(), failure=Failure.of(error))
        health = await asyncio.to_thread(shard.health)
        return dataclasses.replace(health, version=self._about.collection.version)

    async def generation(self) -> tuple[About, int]:
        """The generation of the shard, and the number of the next one, or zero."""
        return self._about, 0 if self._server is None else self._server.successor

    async def succeed(self, generation: int) -> None:
        await self._opened()
        assert self._server is not None
        self._server.successor = generation

    async def peers(self) -> int:
        return 0 if self._server is None else len(self._server.peers)

    async def copy(self, source: Endpoint, token: str, last: bool) -> int:
        """Run a round of the copy of a shard that moves to this node."""
        if self._copying is None:
            channel = SocketChannel(self._about.label(self._place), at(source))
            self._copying = ShardCopy(self._spec.path, Source(channel, token))
        channel_now = self._copying.source.channel
        await channel_now.health()  # connects
        try:
            return await self._copying.copy(last)
        finally:
            if last:
                await channel_now.close()

    async def remove_copy(self) -> None:
        if self._copying is not None:
            await self._copying.source.channel.close()
            await self._copying.remove()

    async def close(self) -> None:
        if self._host is not None:
            self._host.close()
        if self._shard is not None:
            self._shard.close()

    async def _opened(self) -> Shard:
        async with self._opening:
            if self._shard is None:
                self._shard = await asyncio.to_thread(self._open)
            return self._shard

    def _open(self) -> Shard:
        spec = self._spec
        if spec.threads is None:
            spec = dataclasses.replace(spec, threads=share_of_cores(self._count_here()))
        number = list(self._about.specs()).index(self._place)
        spec = dataclasses.replace(spec, processor=number * (spec.threads or 1))
        shard = Shard(spec)
        shard.health()  # opens the index; where that fails, the cluster hears why from health()
        about = self._about
        self._server = ShardServer(
            shard, token=about.token, version=about.collection.version, name=about.label(self._place)
        )
        self._host = ShardHost(self._server)
        util: Any = ray.util
        try:
            self._endpoint = self._host.start(
                path=abstract_path(spec.name),
                host=util.get_node_ip_address(),
                ports=about.options.ports,
                tls=about.options.tls,
            )
        except BaseException:
            self._host.close()
            shard.close()
            raise
        return shard

    def _count_here(self) -> int:
        """The number of shards of this collection on this node; shards that do not answer count."""
        others = [place for place in self._about.specs() if place != self._place]
        asked = [actor.node.remote() for actor in handles_of(others).values()]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=NEIGHBORS_S) if asked else ([], [])
        elsewhere = 0
        for one in ready:
            try:
                elsewhere += ray.get(one) != _node_id()
            except ray_exceptions.RayError:
                continue
        return 1 + len(others) - elsewhere


def _node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())


def actor_name(place: Place) -> str:
    name = f"velo-{place.collection}-{place.generation}-shard-{place.shard}-replica-{place.replica}"
    return f"{name}-move-{place.move}" if place.move else name


def get_actor(place: Place) -> Any:
    """Find an actor by its name, or that of a shard which was moved; ValueError where there is none.

    While a shard is being moved it has two: the first serves it until it ends.
    """
    try:
        return ray.get_actor(actor_name(place), namespace=NAMESPACE)
    except ValueError:
        there = moves_of(place)
        if not there:
            raise
        return ray.get_actor(actor_name(there[0]), namespace=NAMESPACE)


def moves_of(place: Place) -> list[Place]:
    """The places of the actors of a shard, one for each folder, the one that serves it first."""
    plain = dataclasses.replace(place, move=0)
    return [one for one in places_of(place.collection) if dataclasses.replace(one, move=0) == plain]


def _running() -> list[Place]:
    pattern = re.compile(r"velo-(.+)-(\d+)-shard-(\d+)-replica-(\d+)(?:-move-(\d+))?")
    util: Any = ray.util
    named = util.list_named_actors(all_namespaces=True)
    names = [one["name"] for one in named if one["namespace"] == NAMESPACE]
    matches = filter(None, map(pattern.fullmatch, names))
    return [Place(one[1], int(one[2]), one[3], int(one[4]), int(one[5] or 0)) for one in matches]


def places_of(collection: str) -> list[Place]:
    there = [place for place in _running() if place.collection == collection]
    return sorted(there, key=lambda place: (place.generation, int(place.shard), place.replica, place.move))


def unknown(name: str) -> UnknownCollectionError:
    """The error for a name without actors; it lists the names that have some."""
    there = sorted({place.collection for place in _running()})
    others = f"; there are {', '.join(map(repr, there))}" if there else ""
    return UnknownCollectionError(f"no actors of a collection {name!r} run here{others}")


def first_generation(places: Sequence[Place], timeout_s: float) -> tuple[About, int]:
    """The generation of some actors and its successor, as known to any of them."""
    found: list[tuple[About, int]] = []
    failure = ""
    for place in places:
        try:
            found.append(ray.get(get_actor(place).generation.remote(), timeout=timeout_s))
        except (ValueError, ray_exceptions.RayError) as error:
            failure = first_line(error)
    if not found:
        name = places[0].collection if places else ""
        raise ShardUnavailableError(f"no shard of {name!r} answers: {failure}")
    return max(found, key=lambda generation: generation[1])


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def newest(name: str, timeout_s: float) -> About:
    """The generation that a name serves: follow successors from the oldest one that runs."""
    there = places_of(name)
    if not there:
        raise unknown(name)
    number = min(place.generation for place in there)
    while True:
        about, successor = first_generation([one for one in there if one.generation == number], timeout_s)
        if not any(one.generation == successor for one in there):
            return about
        number = successor


class ActorLauncher:
    """An actor for each shard."""

    def start(self, about: About, only: str | None = None) -> dict[Place, Any]:
        make: Any = ray.remote
        remote_class = make(max_restarts=-1, max_task_retries=0, max_concurrency=CALLS_AT_ONCE)(ShardActor)
        options = about.options
        pins = {entry.name: entry.pin for entry in about.collection.shards}
        moved = {name: move.pin for name, move in about.moves.items()}
        if only is not None:  # of a move whose process was killed: this one is the only one that is allowed
            self.end(handles_of(moves_of(Place(about.collection.name, about.generation, only))[1:]))
        started: dict[Place, Any] = {}
        try:
            for place, spec in about.specs(only).items():
                pin = _pin_of(options.pin, place) or pins[place.shard]
                where = _placement(moved.get(place.shard, pin), options.replicas)
                arguments = where | {
                    "name": actor_name(place),
                    "namespace": NAMESPACE,
                    "lifetime": "detached" if options.detached else None,
                    "num_cpus": options.num_cpus,
                }
                try:
                    started[place] = remote_class.options(**arguments).remote(about, place, spec)
                except ValueError as error:
                    if "already" not in str(error):
                        raise InvalidArgumentError(first_line(error)) from None
                    raise exists_error(place) from None
        except BaseException:
            self.end(started)
            raise
        return started

    def healths(
        self,
        about: About,
        started: Mapping[Place, Any],
        timeout_s: float,
        progress: Callable[[str], None] | None,
    ) -> dict[Place, ShardHealth]:
        found: dict[Place, ShardHealth] = {}
        report = progress or (lambda line: None)
        report(f"0 of {len(started)} shards are up")
        for place, health in _healths(started, timeout_s):
            if isinstance(health, ray_exceptions.RayError):
                why = f"shard {about.label(place)} did not start: {first_line(health)}"
                health = ShardHealth(failure=Failure.of(ShardUnavailableError(why)))
            found[place] = health
            if len(found) < len(started):
                report(f"{len(found)} of {len(started)} shards are up")
        late = [about.label(place) for place in started if place not in found]
        error = PlacementError(
            f"shards {', '.join(late)} of {about.collection.name!r} did not start within {timeout_s:g} s: is "
            "there a node with the resource or label that they are pinned to, and with enough processors?",
            argument="pin",
        )
        missing = ShardHealth(failure=Failure.of(error))
        return {place: found.get(place, missing) for place in started}

    def succeed(self, former: Mapping[Place, Any], generation: int) -> None:
        """Report the next generation; actors that died are skipped."""
        _ = answers_of([actor.succeed.remote(generation) for actor in former.values()], LEAVE_S)

    def await_left(self, former: Mapping[Place, Any], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(
            answers_of([actor.peers.remote() for actor in former.values()], LOOK_S * 10)
        ):
            time.sleep(LOOK_S)

    def end(self, started: Mapping[Place, Any]) -> None:
        """Kill the actors and wait until Ray has released their names."""
        if not ray.is_initialized():
            return
        for actor in started.values():
            ray.kill(actor, no_restart=True)
        deadline = time.monotonic() + END_S
        for collection in {place.collection for place in started}:
            while not set(started).isdisjoint(places_of(collection)) and time.monotonic() < deadline:
                time.sleep(0.02)

    def replace(self, former: Any, new: Any) -> tuple[Any, Any]:
        return new, former


def exists_error(place: Place) -> ClusterExistsError:
    return ClusterExistsError(
        f"actor {actor_name(place)} runs already: `velo stop {place.collection}` ends it, "
        f"`velo serve --connect {place.collection}` serves it, another name makes another one",
        argument="name",
    )


def _pin_of(pin: str | Mapping[str, str] | None, place: Place) -> Pin | None:
    text = pin.get(place.shard) if isinstance(pin, Mapping) else pin
    return None if text is None else Pin.parse(text.replace("{replica}", str(place.replica)), place.shard)


def _placement(pin: Pin | None, replicas: int) -> dict[str, Any]:
    # Replicas on one node die together.
    spread: dict[str, Any] = {} if replicas == 1 else {"scheduling_strategy": "SPREAD"}
    return pin_options(pin) if pin is not None and pin.label is not None else spread | pin_options(pin)


def pin_options(pin: Pin | None) -> dict[str, Any]:
    if pin is None:
        return {}
    if pin.label is not None:
        return {"label_selector": {pin.label[0]: pin.label[1]}}
    return {"resources": {pin.resource: PIN_SHARE}}


def node_has(node: Mapping[str, Any], pin: Pin | None, *, memory: float, num_cpus: float) -> bool:
    """Whether one of ``ray.nodes()`` matches a pin and can reserve these resources."""
    has = node["Resources"]
    if not node["Alive"] or has.get("memory", 0) < memory or has.get("CPU", 0) < num_cpus:
        return False
    if pin is None:
        return True
    if pin.label is not None:
        return bool(node.get("Labels", {}).get(pin.label[0]) == pin.label[1])
    return bool(has.get(pin.resource, 0) >= PIN_SHARE)


def _healths(
    actors: Mapping[Place, Any], timeout_s: float
) -> Iterator[tuple[Place, ShardHealth | ray_exceptions.RayError]]:
    """The healths of actors as they come, or why one has none; those that come too late are missing."""
    asked = {actor.health.remote(): place for place, actor in actors.items()}
    waiting = list(asked)
    deadline = time.monotonic() + timeout_s
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        ready, waiting = ray.wait(waiting, timeout=left_s)
        for one in ready:
            try:
                yield asked[one], cast("ShardHealth", ray.get(one))
            except ray_exceptions.RayError as error:
                yield asked[one], error


def first_healths(about: About, timeout_s: float, *, partial: bool = False) -> dict[Place, ShardHealth]:
    """The health of the first replica of each shard that answers; if ``partial``, of at least one shard."""
    missing, failure = {entry.name for entry in about.collection.shards}, "it does not run"
    healths: dict[Place, ShardHealth] = {}
    deadline = time.monotonic() + timeout_s
    found: set[Any] = set()
    # A move may end an actor before it answers: by then another one has its shard.
    while actors := {
        place: actor
        for place, actor in handles_of(about.specs()).items()
        if place.shard in missing and actor not in found
    }:
        found.update(actors.values())
        for place, health in _healths(actors, deadline - time.monotonic()):
            if isinstance(health, ray_exceptions.RayError):
                failure = first_line(health)
            elif health.failure is not None:
                failure = health.failure.message
            else:
                healths[place] = health
                missing.discard(place.shard)
            if not missing:
                return healths
    if partial and healths:
        for shard in sorted(missing):
            log_missing(about.collection.name, shard, failure)
        return healths
    raise ShardUnavailableError(
        f"shard {', '.join(sorted(missing))} of {about.collection.name!r} does not answer: {failure}"
    )


def handles_of(places: Iterable[Place]) -> dict[Place, Any]:
    handles = {}
    for place in places:
        with contextlib.suppress(ValueError):
            handles[place] = get_actor(place)
    return handles


def answers_of(replies: Sequence[Any], timeout_s: float) -> list[Any]:
    """The answers of actors that came in time; dead actors have none."""
    if not replies:
        return []
    ready, _ = ray.wait(list(replies), num_returns=len(replies), timeout=timeout_s)
    answers = []
    for one in ready:
        try:
            answers.append(ray.get(one))
        except ray_exceptions.RayError:
            continue
    return answers


class _PatientSubscriber:
    """A slower source of errors for a thread of Ray that polls without a pause once Ray's service has ended.

    Otherwise that thread takes the interpreter of a gateway, which then answers fifty times as slowly.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def poll(self) -> tuple[Any, Any]:
        found: tuple[Any, Any] = self._inner.poll()
        if found[1] is None:
            time.sleep(ERRORS_S)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _calm() -> None:
    """Make this process wait for Ray's service without polling."""
    worker: Any = ray._private.worker.global_worker
    inner = getattr(worker, "gcs_error_subscriber", None)
    if inner is not None and not isinstance(inner, _PatientSubscriber):
        worker.gcs_error_subscriber = _PatientSubscriber(inner)


def start_local_ray() -> None:
    """Start a Ray of this machine alone: on the loopback address, without a dashboard."""
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
    )
    _calm()


def join_ray(address: str = "auto") -> None:
    """Connect to a running Ray, unless this process is connected; never start one."""
    if ray.is_initialized():
        _calm()
        return
    try:
        where = services.canonicalize_bootstrap_address_or_die(address)
        # Ray itself would try for as long as a process that is connected waits for it: a day.
        host, _, port = where.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), JOIN_S).close()
        # By the address as it was given: "auto" reads Ray's token, too.
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        _calm()
    except Exception as error:  # of many kinds, some of them plain: a user wants the line that says why
        what = "no Ray is found" if address == "auto" else f"there is no Ray at {address!r}"
        raise PlacementError(f"{what}: {first_line(error)}", argument="address") from None


@contextmanager
def ray_session(address: str | None = None) -> Iterator[bool]:
    """A connection to Ray; an existing one is used and kept. Yields whether a Ray was started here."""
    if ray.is_initialized():
        yield False
        return
    if address is None:
        try:
            start_local_ray()
        except Exception as error:
            raise PlacementError(
                f"Ray does not start here: {first_line(error)}; velo serve --processes does without Ray",
                argument="address",
            ) from None
    else:
        join_ray(address)
    try:
        yield address is None
    finally:
        ray.shutdown()
