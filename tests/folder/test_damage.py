"""Damaged indexes: every flipped bit and every missing byte is noticed, by open or by verify, and named."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import velo
from tests.rungs import PAGES, PAGES_LEAST, RECORDS, RUNGS, Rung, budget_of
from velo import errors
from velo.options import links_steps
from velo.testing import synthetic_metadata, synthetic_vectors

ROWS = 3_000
DIM = 32
FILES = (
    "codes.bin",
    "columns.arrow",
    "columns.postings",
    "columns.stats",
    "ids.arrow",
    "links.bin",
    "manifest.json",
    "page_codes.bin",
    "page_starts.bin",
    "pages.bin",
    "vectors.bin",
)


#: Codes of four bits with links in pages; codes of pages and records, without links there.
BUILT = (RUNGS[3], RUNGS[10])
each_index = pytest.mark.parametrize("rung", BUILT, ids=str)
each_file = pytest.mark.parametrize(
    ("rung", "name"),
    [(rung, name) for rung in BUILT for name in FILES if rung.page_codes or name != "page_codes.bin"],
    ids=str,
)


class Sound:
    """An undamaged index and its budgets."""

    def __init__(self, path: Path, rung: Rung) -> None:
        self.path = path
        velo.build(
            path,
            synthetic_vectors(ROWS, DIM),
            ids=[f"v{number}" for number in range(ROWS)],
            metadata=synthetic_metadata(ROWS),
            store_vectors=True,
            degree=24,
            links_kept=16,
            threads=2,
            **rung.build,
        ).close()
        with velo.open(path, threads=1) as index:
            info = index.info()
        of_pages = (RECORDS, PAGES, PAGES_LEAST)
        steps = of_pages if info["page_codes"] else (16, 8, *links_steps(shared=True), 0)
        least = [budget_of(path, links) for links in steps]
        pages = (path / "pages.bin").stat().st_size
        #: One for each rung of this index, one for some cached pages, and one for all.
        self.budgets = [*least, least[0] + pages // 2, least[0] + 2 * pages]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[Rung, Sound]:
    """Both indexes. Parameters of a fixture would build them again for each test."""
    return {rung: Sound(tmp_path_factory.mktemp("sound") / "i", rung) for rung in BUILT}


@pytest.fixture
def sound(built: dict[Rung, Sound], rung: Rung) -> Path:
    return built[rung].path


@pytest.fixture
def budgets(built: dict[Rung, Sound], rung: Rung) -> list[int]:
    return built[rung].budgets


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "i"))


def opened_and_verified(path: Path, memory: int | None = None) -> None:
    with velo.open(path, memory=memory, threads=1) as index:
        index.verify()


@each_index
def test_these_are_all_files(sound: Path) -> None:
    names = {entry.name for entry in sound.iterdir()}
    assert names | {"page_codes.bin"} == set(FILES)
    opened_and_verified(sound)
    assert velo.verify(sound) > 0


@each_file
def test_a_flipped_bit_is_noticed(
    name: str, copy: Path, budgets: list[int], random: np.random.Generator
) -> None:
    whole = bytearray((copy / name).read_bytes())
    places = {0, len(whole) * 8 - 1, *random.integers(0, len(whole) * 8, size=12).tolist()}
    for place, memory in zip(places, itertools.cycle(budgets), strict=False):
        whole[place // 8] ^= 1 << place % 8
        (copy / name).write_bytes(whole)
        kinds = (errors.CorruptIndexError,)
        if name == "manifest.json":  # damage there may look like another version, or like no index at all
            kinds = (errors.CorruptIndexError, errors.UnsupportedVersionError, errors.NotAnIndexError)
        with pytest.raises(kinds) as caught:
            opened_and_verified(copy, memory)
        assert caught.value.file == name, f"bit {place} at {memory}: {caught.value}"
        with pytest.raises(kinds):
            velo.verify(copy)
        whole[place // 8] ^= 1 << place % 8
    (copy / name).write_bytes(whole)
    for memory in budgets:
        opened_and_verified(copy, memory)


@each_file
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_truncated_file_is_noticed(name: str, keep: float, copy: Path, budgets: list[int]) -> None:
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[: min(int(len(whole) * keep), len(whole) - 1)])
    for memory in budgets:
        with pytest.raises((errors.CorruptIndexError, errors.NotAnIndexError)) as caught:
            opened_and_verified(copy, memory)
        assert caught.value.file == name


@each_file
def test_bytes_at_the_end_are_noticed(name: str, copy: Path) -> None:
    with open(copy / name, "ab") as file:
        file.write(b"\0" * 7)
    with pytest.raises((errors.CorruptIndexError, errors.NotAnIndexError)) as caught:
        opened_and_verified(copy)
    assert caught.value.file == name


@each_file
def test_a_missing_file_is_noticed(name: str, copy: Path) -> None:
    (copy / name).unlink()
    kind = errors.NotAnIndexError if name == "manifest.json" else errors.CorruptIndexError
    with pytest.raises(kind):
        opened_and_verified(copy)


@each_index
def test_a_newer_version_is_told_apart_from_damage(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["format_version"] = 99
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(errors.UnsupportedVersionError, match="newer"):
        velo.open(copy)
    with pytest.raises(errors.UnsupportedVersionError):
        velo.verify(copy)


def test_what_is_no_index(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(errors.NotAnIndexError) as caught:
            velo.open(path)
        assert isinstance(caught.value, FileNotFoundError)
        assert str(path) in str(caught.value)
        with pytest.raises(errors.NotAnIndexError):
            velo.verify(path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(errors.CorruptIndexError):
        velo.open(tmp_path)


@each_index
def test_a_search_that_reads_a_damaged_page_names_it(copy: Path, budgets: list[int]) -> None:
    whole = bytearray((copy / "pages.bin").read_bytes())
    for place in range(0, len(whole), 64):
        whole[place] ^= 0x10
    (copy / "pages.bin").write_bytes(whole)
    query = synthetic_vectors(1, DIM)[0]
    for memory in budgets:
        with pytest.raises(errors.CorruptIndexError) as caught, velo.open(copy, memory=memory) as index:
            index.search(query)
        assert caught.value.file == "pages.bin"


@each_index
def test_only_the_damaged_page_fails_a_search(copy: Path, budgets: list[int]) -> None:
    """Damage to one page: queries that do not read it are answered, one that does names it."""
    size = json.loads((copy / "manifest.json").read_text())["page_size"]
    whole = bytearray((copy / "pages.bin").read_bytes())
    pages = len(whole) // size
    whole[(pages // 2) * size + 100] ^= 1
    (copy / "pages.bin").write_bytes(whole)
    rows = synthetic_vectors(ROWS, DIM)
    for memory in budgets:
        failed: list[errors.CorruptIndexError] = []
        with velo.open(copy, memory=memory, threads=1) as index:
            for row in range(0, ROWS, 7):
                try:
                    index.search(rows[row], k=5, list_size=8)
                except errors.CorruptIndexError as error:
                    failed.append(error)
        assert failed, "some query wanted that page"
        assert {(error.file, error.page) for error in failed} == {("pages.bin", failed[0].page)}
        assert failed[0].page is not None
        assert len(failed) < 0.9 * (ROWS // 7), "queries that do not read the page are answered"
