"""Connections to shards on other machines: ports, certificates, identity of the shard."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from tests.serving.fakes import ExactIndex
from tests.serving.test_access import certificate
from velo.errors import InvalidArgumentError
from velo_serving import Cluster
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import PortInUseError, ShardUnavailableError, WrongPlaceError
from velo_serving.protocol.types import Hits, SearchRequest
from velo_serving.shard.shard import Shard
from velo_serving.transport.channel import SocketChannel, at
from velo_serving.transport.endpoint import Endpoint, ports_of
from velo_serving.transport.server import ShardServer

VECTORS = np.random.default_rng(5).standard_normal((60, 4)).astype(np.float32)

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@asynccontextmanager
async def serving(folder: Path, name: str = "", **options: Any) -> AsyncIterator[Endpoint]:
    shard = Shard(ShardSpec("0", str(folder)), lambda spec: ExactIndex(VECTORS))
    shard.open()
    server = ShardServer(shard, token="secret", name=name)
    try:
        yield await server.start(host="127.0.0.1", **options)
    finally:
        await server.close()
        shard.close()


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], scene: Any) -> None:
    loop = new_loop()
    try:
        loop.run_until_complete(scene)
    finally:
        loop.close()


async def nearest(endpoint: Endpoint, row: int) -> int:
    channel = SocketChannel("0", at(endpoint))
    try:
        await channel.health()
        reply = await channel.submit(SearchRequest(VECTORS[[row]], 1), 10.0)
        assert isinstance(reply, Hits)
        return int(reply.ids[0, 0])
    finally:
        await channel.close()


# ---- ports ----


async def test_shards_take_the_first_free_port_of_a_range(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        async with serving(tmp_path, ports=f"{first}-{first + 20}") as endpoint:
            assert first < endpoint.port <= first + 20
            assert await nearest(endpoint, 7) == 7
        with pytest.raises(PortInUseError, match=f"shard 0: of 127.0.0.1 all ports {first}-{first} are"):
            async with serving(tmp_path, ports=f"{first}-{first}"):
                pass


@pytest.mark.parametrize("text", ["7100", "7199-7100", "0-10", "7100-70000", "a-b", ""])
def test_an_invalid_range_of_ports_is_refused_before_anything_starts(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="a range of ports reads '7100-7199'") as caught:
        Cluster.start(tmp_path, ports=text)
    assert caught.value.argument == "ports"
    assert ports_of("7100-7101") == range(7100, 7102)


# ---- identity ----


async def test_another_shard_at_the_port_is_refused_and_the_right_one_located(tmp_path: Path) -> None:
    """After two processes of a node have started again, each may have the port of the other."""

    async with serving(tmp_path, "1") as other, serving(tmp_path, "0") as own:
        with pytest.raises(WrongPlaceError, match="shard 1 listens here, not 0"):
            await SocketChannel("0", at(other)).health()
        channel = SocketChannel("0", at(own))
        channel._endpoint = other  # where it was
        assert (await channel.health()).n == len(VECTORS)
        await channel.close()


def test_the_last_address_of_a_shard_is_tried_until_it_is_located(tmp_path: Path) -> None:
    """As after a cable was pulled: the catalog may report later that it is back."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        asked = [0]
        says = asyncio.Event()
        async with serving(tmp_path) as endpoint:
            gone = Endpoint("secret", host="127.0.0.1", port=9)

            async def locate() -> Endpoint:
                asked[0] += 1
                if asked[0] > 1:
                    await says.wait()
                return endpoint if says.is_set() else gone

            channel = SocketChannel("0", locate)
            with pytest.raises(ShardUnavailableError):
                await channel.health()  # its failure is not known yet
            channel._endpoint = gone
            for _ in range(3):
                began = loop.time()
                with pytest.raises(ShardUnavailableError, match=r"does not answer where it was$"):
                    await channel.health()
                assert loop.time() - began < 5
            assert asked[0] == 2  # once, however often it is looked for meanwhile
            channel._endpoint = endpoint  # the cable is back
            assert (await channel.health()).n == len(VECTORS)
            channel.reset()
            channel._endpoint = gone  # it is elsewhere
            says.set()
            assert (await channel.health()).n == len(VECTORS)
            channel._endpoint = gone
            says.clear()
            channel.reset()
            with pytest.raises(ShardUnavailableError):
                await channel.health()
            await channel.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scene())


# ---- TLS ----


def machine(folder: Path, authority: Path, made: Path, key: Path) -> str:
    """What lies on a machine."""
    folder.mkdir()
    for file, name in ((made, "cert.pem"), (key, "key.pem"), (authority, "ca.pem")):
        shutil.copy(file, folder / name)
    return str(folder)


@LOOPS
def test_shards_and_gateways_verify_certificates_of_each_other(new_loop: Any, tmp_path: Path) -> None:
    made, key = certificate(tmp_path / "own", "good", days=2)
    other, other_key = certificate(tmp_path / "other", "good", days=2)
    old, old_key = certificate(tmp_path / "old", "old", days=-1)
    here = machine(tmp_path / "here", made, made, key)

    async def scene() -> None:
        async with serving(tmp_path, tls=here) as endpoint:
            assert await nearest(endpoint, 7) == 7
            plain = Endpoint("secret", host=endpoint.host, port=endpoint.port)
            with pytest.raises(ShardUnavailableError):
                await asyncio.wait_for(nearest(plain, 7), 20)
            # Places that the catalog does not confirm, or no longer confirms.
            stranger = machine(tmp_path / "stranger", made, other, other_key)
            distrusts = machine(tmp_path / "distrusts", other, made, key)
            for folder, why in ((stranger, None), (distrusts, "self-signed certificate")):
                asked = Endpoint("secret", host=endpoint.host, port=endpoint.port, tls=folder)
                with pytest.raises(ShardUnavailableError) as told:
                    await asyncio.wait_for(nearest(asked, 7), 20)
                assert why is None or why in told.value.detail
            assert await nearest(endpoint, 8) == 8
        expired = machine(tmp_path / "expired", old, old, old_key)
        async with serving(tmp_path, tls=expired) as endpoint:
            with pytest.raises(ShardUnavailableError) as told:
                await nearest(endpoint, 7)
            assert "certificate has expired" in told.value.detail

    run(new_loop, scene())


async def test_certificates_that_cannot_be_used_name_their_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{tmp_path}: cert.pem, key.pem or ca.pem") as caught:
        async with serving(tmp_path, tls=str(tmp_path)):
            pass
    assert caught.value.argument == "tls"
