"""Files that were changed and whose sums were mended: a typed error or an answer, never a signal or a hang.

Some hundreds of cases here; ``python -m tests.fuzz --count 5000`` runs thousands.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import velo
from tests.fuzz.fields import Field
from tests.fuzz.mend import manifest_bytes, mend, read_manifest, replace_file
from tests.fuzz.mutations import Sound
from tests.fuzz.runner import Case, Fuzzer, build_sound
from tests.long import count
from velo.errors import CorruptIndexError

CASES = count(60, 300)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Sound]:
    return build_sound(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture
def fuzzer(sound: list[Sound]) -> Iterator[Fuzzer]:
    with Fuzzer(sound) as fuzzer:
        yield fuzzer


def test_what_was_not_changed_is_sound(sound: list[Sound], fuzzer: Fuzzer, tmp_path: Path) -> None:
    """The child finds no damage where there is none, also when all sums were taken anew."""
    for place, one in enumerate(sound):
        copy = tmp_path / str(place)
        shutil.copytree(one.folder, copy)
        mend(copy, [name for name in one.files if name != "manifest.json"])
        for name, data in one.files.items():
            assert (copy / name).read_bytes() == data or name == "manifest.json", name
        case = Case(place, [str(one.folder)])
        fuzzer.use(copy, case)
        assert not case.findings, case
        assert "CorruptIndexError" not in case.outcomes, case
        assert velo.verify(copy) > 0


def test_changed_fields_are_refused_or_harmless(fuzzer: Fuzzer) -> None:
    seed = int(os.environ.get("VELO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    found = []
    damaged = 0
    for number in range(seed, seed + CASES):
        case = fuzzer.run(number)
        found += [str(case)] if case.findings else []
        damaged += "CorruptIndexError" in case.outcomes
    assert not found, "\n".join(found)
    assert damaged > CASES // 2, (
        "so few changes were noticed that they cannot have been mended as they should"
    )


# ---- faults that only one part of the checks can object to


def changed(one: Sound, folder: Path, name: str, change: dict[str, tuple[int, int]]) -> Path:
    """A copy in which numbers of a file were set, (place, value) by field, with mended sums."""
    shutil.copytree(one.folder, folder)
    data = bytearray(one.files[name])
    for field_name, (place, value) in change.items():
        field = next(field for field in one.fields[name] if field.name == field_name)
        put(data, field, place, value)
    replace_file(folder, name, bytes(data))
    mend(folder, [name])
    return folder


def put(data: bytearray, field: Field, place: int, value: int) -> None:
    at = field.at + place * field.size
    data[at : at + field.size] = value.to_bytes(field.size, "little", signed=value < 0)


def test_verify_decodes_the_links(sound: list[Sound], tmp_path: Path) -> None:
    """A list that claims 255 neighbors: every sum is right, and an open that keeps all links copies it."""
    path = changed(sound[0], tmp_path / "i", "links.bin", {"heap": (0, 255)})
    velo.open(path, threads=1).close()
    with pytest.raises(CorruptIndexError, match="links of vertex 0") as caught:
        velo.verify(path)
    assert caught.value.file == "links.bin"


def test_verify_decodes_the_lists_of_pages(sound: list[Sound], tmp_path: Path) -> None:
    """The first list of a page ends before its last neighbor: only who decodes it knows."""
    path = changed(sound[0], tmp_path / "i", "pages.bin", {"list_ends": (0, 1)})
    velo.open(path, threads=1).close()
    with pytest.raises(CorruptIndexError, match="a neighbor list is damaged") as caught:
        velo.verify(path)
    assert (caught.value.file, caught.value.page) == ("pages.bin", 0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ids.arrow", {"id.offsets": (1, 1 << 40)}),
        ("ids.arrow", {"id.offsets": (1, -1)}),
        ("ids.arrow", {"id.text": (0, 0xFF)}),
        ("columns.arrow", {"color.codes": (0, 6)}),
        ("columns.arrow", {"color.codes": (0, -7)}),
        ("columns.arrow", {"name.dictionary.offsets": (3, 1 << 40)}),
        ("columns.arrow", {"name.dictionary.text": (0, ord("z"))}),
        ("columns.arrow", {"tags.offsets": (1, 1 << 30)}),
        ("columns.arrow", {"numbers.offsets": (2, -1)}),
        ("codes.bin", {"mean": (0, 0x7FC00000)}),
        ("codes.bin", {"centers": (5, 0x7F800000)}),
        ("codes.bin", {"tan_full": (0, 0x7FC00000)}),
        ("codes.bin", {"factors": (1, 0xFFFF)}),
        ("links.bin", {"links_built": (0, 2**31)}),
        ("page_starts.bin", {"n": (0, 2**32 - 1)}),
    ],
)
def test_an_open_refuses(
    sound: list[Sound], tmp_path: Path, name: str, change: dict[str, tuple[int, int]]
) -> None:
    path = tmp_path / "i"
    shutil.copytree(sound[0].folder, path)
    data = bytearray(sound[0].files[name])
    for field_name, (place, value) in change.items():
        field = next(field for field in sound[0].fields[name] if field.name == field_name)
        bits = 8 * field.size
        put(data, field, place, (value & ((1 << bits) - 1)))
    replace_file(path, name, bytes(data))
    mend(path, [name])
    with pytest.raises(CorruptIndexError) as caught:
        velo.open(path, threads=1).close()
    assert caught.value.file == name


def test_rows_that_are_no_permutation_are_refused_before_masks_go_by_them(
    sound: list[Sound], tmp_path: Path
) -> None:
    numbered = next(one for one in sound if one.folder.name == "numbers")
    field = next(
        field for field in numbered.fields["ids.arrow"] if (field.name, field.kind) == ("row.numbers", "u32")
    )
    for value in (0xFFFFFFFF, 600, 5):
        folder = tmp_path / str(value)
        shutil.copytree(numbered.folder, folder)
        data = bytearray(numbered.files["ids.arrow"])
        before = int.from_bytes(data[field.at : field.at + 4], "little")
        put(data, field, 0, value if value != before else 6)
        replace_file(folder, "ids.arrow", bytes(data))
        mend(folder, ["ids.arrow"])
        with velo.open(folder, threads=1) as index, pytest.raises(CorruptIndexError) as caught:
            index.search([0.0] * 24, filter=[True] * 300 + [False] * 300)
        assert caught.value.file == "ids.arrow"


@pytest.mark.parametrize(
    "user",
    [
        {"first_row": 10**30},
        {"first_row": -1},
        {"first_row": "0"},
        [1],
        {"metadata": 5},
        {"metadata": {"generation": 0}},
    ],
)
def test_a_manifest_of_impossible_numbers_is_refused(
    sound: list[Sound], tmp_path: Path, user: object
) -> None:
    path = tmp_path / "i"
    shutil.copytree(sound[0].folder, path)
    manifest = read_manifest(path)
    manifest["user"] = user
    replace_file(path, "manifest.json", manifest_bytes(json.dumps(manifest, indent=2)))
    with pytest.raises(CorruptIndexError) as caught:
        velo.open(path, threads=1)
    assert caught.value.file == "manifest.json"


def test_a_manifest_too_deep_for_a_parser_is_refused(sound: list[Sound], tmp_path: Path) -> None:
    path = tmp_path / "i"
    shutil.copytree(sound[0].folder, path)
    manifest = read_manifest(path)
    manifest["user"] = "@"
    text = json.dumps(manifest, indent=2).replace('"@"', "[" * 100_000 + "]" * 100_000)
    replace_file(path, "manifest.json", manifest_bytes(text))
    with pytest.raises(CorruptIndexError) as caught:
        velo.open(path, threads=1)
    assert caught.value.file == "manifest.json"


@pytest.mark.parametrize("name", ["codes.bin", "links.bin", "page_starts.bin", "pages.bin"])
def test_no_room_is_made_for_what_a_manifest_only_says(sound: list[Sound], tmp_path: Path, name: str) -> None:
    path = tmp_path / "i"
    shutil.copytree(sound[0].folder, path)
    manifest = read_manifest(path)
    next(file for file in manifest["files"] if file["name"] == name)["bytes"] = 2**50
    replace_file(path, "manifest.json", manifest_bytes(json.dumps(manifest, indent=2)))
    for use in (velo.open, velo.verify):
        with pytest.raises(CorruptIndexError) as caught:
            use(path)
        assert caught.value.file == name
