"""A service over three hosts: Ray's own service killed, a host lost and back, a cable pulled."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import velo
from tests.serving.conftest import RAY_MARKS
from tests.serving.hosts import Asker, Gateway, Hosts, refusal

pytestmark = RAY_MARKS

SHARDS = 2
VECTORS = np.random.default_rng(31).standard_normal((400, 16)).astype(np.float32)

#: For how long Ray's own service is away: by Ray's default its processes end after 60 s.
WITHOUT_S = 90.0

#: For how long a cable is pulled; and by when an answer without replicas is whole again, on a busy machine:
#: the system asks for a neighbor's address once a second.
PULLED_S = 30.0
BACK_S = 4.0


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """A head without disks, and a host for each of two disks."""
    if why := refusal():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        opened = Hosts()
        stack.callback(opened.close)
        opened.start_ray(1)
        for disk in range(2):
            opened.start_ray(2 + disk, **{f"disk-{disk}": 1})
        opened.await_nodes()
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hosts")
    return velo.build_collection(folder / "photos.velo", VECTORS, shards=SHARDS, calibrate=False, threads=1)


def start(hosts: Hosts, path: Path) -> None:
    """Two services: of `single` each host has a shard; of `double` each has a replica of both."""
    common = ("serve", str(path), "--detached", "--threads", "1")
    hosts.velo(1, *common, "--name", "single", "--pin", "resource:disk-{shard}")
    hosts.velo(1, *common, "--name", "double", "--pin", "resource:disk-{replica}", "--replicas", "2")


@contextlib.contextmanager
def asked(*gateways: Gateway) -> Iterator[list[Asker]]:
    askers = [Asker(one, VECTORS) for one in gateways]
    try:
        for one in askers:
            one.until(lambda seen: seen.shards == SHARDS)
        yield askers
    finally:
        for one in askers:
            one.end()


def check_whole(asker: Asker, since: float, least: int) -> None:
    """Of a hundred answers one may miss a shard: some process gets no processor on a busy machine."""
    seen = asker.since(since)
    assert len(seen) > least
    assert not [one for one in seen if one.error]
    partial = [one for one in seen if one.shards < SHARDS]
    assert len(partial) <= len(seen) / 100, (len(partial), len(seen), partial[:3])
    assert all(one.right for one in seen if one.shards == SHARDS)


@pytest.mark.long(
    guarded_by="tests/serving/test_ray_lifecycle.py::test_processes_wait_while_the_service_of_ray_is_gone"
)
def test_gateways_answer_while_rays_own_service_is_gone(hosts: Hosts, path: Path) -> None:
    start(hosts, path)
    gateways = [Gateway(hosts, 1, "single"), Gateway(hosts, 2, "double"), Gateway(hosts, 3, "single")]
    with asked(*gateways) as askers:
        time.sleep(2)
        began = time.monotonic()
        before = [np.median([one.took_s for one in asker.since(began - 2)]) for asker in askers]
        hosts.kill(1, b"gcs_server")
        time.sleep(WITHOUT_S)
        for asker in askers:
            check_whole(asker, began, 500)
        after = [np.median([one.took_s for one in asker.since(began)]) for asker in askers]
        print(f"medians before {before}, without {after}")
        assert not hosts.pids(1, b"gcs_server")
        # A gateway dies, too, and the others go on.
        gateways[0].kill()
        killed = time.monotonic()
        time.sleep(3)
        for asker in askers[1:]:
            check_whole(asker, killed, 25)
    # And they end on SIGTERM, though Ray does not answer.
    for one in gateways[1:]:
        one.process.send_signal(signal.SIGTERM)
    for one in gateways[1:]:
        assert one.process.wait(60) == 0


@pytest.mark.long(
    guarded_by="tests/serving/test_ray_end_to_end.py::test_a_killed_actor_makes_answers_partial_until_ray_has_restarted_it"
)
def test_a_host_is_lost_and_comes_back(hosts: Hosts, path: Path) -> None:
    start(hosts, path)
    with asked(Gateway(hosts, 1, "single"), Gateway(hosts, 1, "double", 8001)) as (single, double):
        lost = time.monotonic()
        hosts.kill(3)
        single.until(lambda seen: seen.shards == SHARDS - 1)
        time.sleep(5)
        hosts.start_ray(3, **{"disk-1": 1})
        single.until(lambda seen: seen.shards == SHARDS, 120)
        back = time.monotonic()
        # Now the other one: what came back answers for it.
        time.sleep(5)
        hosts.kill(2)
        single.until(lambda seen: seen.shards == SHARDS - 1)
        time.sleep(5)
        check_whole(double, lost, 200)
        partial = [one for one in single.since(lost) if one.at < back]
        assert all(one.shards >= SHARDS - 1 and not one.error for one in partial), partial[:3]


@pytest.mark.long(
    guarded_by="tests/serving/test_channels.py::test_a_host_that_does_not_answer_is_asked_again_soon"
)
def test_a_cable_is_pulled(hosts: Hosts, path: Path) -> None:
    start(hosts, path)
    with asked(Gateway(hosts, 1, "single"), Gateway(hosts, 1, "double", 8001)) as (single, double):
        pulled = time.monotonic()
        hosts.cable(3, plugged=False)
        single.until(lambda seen: seen.shards == SHARDS - 1)
        time.sleep(pulled + PULLED_S - time.monotonic())
        plugged = time.monotonic()
        hosts.cable(3, plugged=True)
        back = single.until(lambda seen: seen.shards == SHARDS)
        time.sleep(3)
        check_whole(double, pulled, 200)
        answers = single.since(pulled)
        assert all(one.shards >= SHARDS - 1 and not one.error for one in answers)
        print(f"whole after {back - plugged:.2f} s")
        assert back - plugged < BACK_S
