"""Reading ``collection.json``: every way in which it can be wrong has a message that names the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from velo.errors import FormatError, InvalidArgumentError, NotAnIndexError, UnsupportedVersionError, VeloError
from velo_serving.catalog.collection import Pin, read_collection
from velo_serving.catalog.launcher import split_memory
from velo_serving.protocol.errors import CollectionFormatError


def document(**changes: Any) -> dict[str, Any]:
    whole = {
        "format": 1,
        "n": 30,
        "dim": 8,
        "metric": "l2",
        "shards": [
            {"path": "shard-00000", "first_row": 0, "rows": 10},
            {"path": "shard-00001", "first_row": 10, "rows": 20, "pin": "resource:ssd-{shard}"},
        ],
    }
    return whole | changes


def write(folder: Path, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "collection.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_sharded_build_is_read(tmp_path: Path) -> None:
    collection = read_collection(write(tmp_path / "photos.velo", document()))
    assert (collection.name, collection.n, collection.dim, collection.metric) == ("photos", 30, 8, "l2")
    first, second = collection.shards
    assert (first.name, first.rows, first.first_row, first.pin) == ("0", 10, 0, None)
    assert second.path == tmp_path / "photos.velo" / "shard-00001"
    assert second.pin == Pin(resource="ssd-1")
    assert second.spec(threads=2).threads == 2
    assert read_collection(tmp_path / "photos.velo" / "collection.json").path == collection.path


def test_a_single_index_is_a_collection_of_one_shard(tmp_path: Path) -> None:
    folder = tmp_path / "one.velo"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"n": 5, "dim": 3, "metric": "cosine"}))
    collection = read_collection(folder, name="other")
    assert (collection.name, collection.n, len(collection.shards)) == ("other", 5, 1)
    assert collection.shards[0].path == folder


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        (document(format=None), "format must"),
        (document(format=True), "format must"),
        (document(n=0), "n must"),
        (document(dim="8"), "dim must"),
        (document(metric="hamming"), "metric must"),
        (document(shards=[]), "shards must"),
        (document(shards={}), "shards must"),
        (document(shards=["a"]), r"shards\[0\] must"),
        (document(shards=[{"first_row": 0, "rows": 30}]), r"shards\[0\].path"),
        (document(shards=[{"path": "../a", "first_row": 0, "rows": 30}]), r"shards\[0\].path must lead"),
        (document(shards=[{"path": "/a", "first_row": 0, "rows": 30}]), r"shards\[0\].path must lead"),
        (document(shards=[{"path": "a/../..", "first_row": 0, "rows": 30}]), r"shards\[0\].path must lead"),
        (document(shards=[{"path": "a", "first_row": 0, "rows": -1}]), r"shards\[0\].rows"),
        (document(shards=[{"path": "a", "first_row": 3, "rows": 27}]), r"shards\[0\].first_row must be 0"),
        (document(n=31), "n is 31, but the shards hold 30"),
        (document(shards=[{"path": "a", "first_row": 0, "rows": 30, "pin": 7}]), r"shards\[0\].pin"),
    ],
)
def test_every_wrong_field_is_named(tmp_path: Path, content: Any, field: str) -> None:
    with pytest.raises(CollectionFormatError, match=field) as raised:
        read_collection(write(tmp_path / "c", content))
    assert isinstance(raised.value, FormatError)
    assert raised.value.file == str(tmp_path / "c" / "collection.json")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedVersionError, match="format 2"):
        read_collection(write(tmp_path / "c", document(format=2)))


def test_a_folder_with_neither_file_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError, match="holds neither"):
        read_collection(tmp_path)
    with pytest.raises(NotAnIndexError, match="is not a folder"):
        read_collection(tmp_path / "nothing")


def test_a_name_that_no_url_can_hold_is_refused_or_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path / "my photos", document())
    assert read_collection(folder).name == "my_photos"
    for given, name in (("shop.collection", "shop"), ("shop.velo", "shop"), ("shop.v2", "shop.v2")):
        assert read_collection(write(tmp_path / given, document())).name == name
    with pytest.raises(InvalidArgumentError):
        read_collection(folder, name="a/b")


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("resource:ssd-a", Pin(resource="ssd-a")),
        ("resource:velo:{shard}", Pin(resource="velo:3")),
        ("label:ssd=a", Pin(label=("ssd", "a"))),
        ("label:velo/shard={shard}", Pin(label=("velo/shard", "3"))),
    ],
)
def test_pins_are_read(text: str, pin: Pin) -> None:
    assert Pin.parse(text, "3") == pin
    assert Pin.parse(str(pin)) == pin


@pytest.mark.parametrize(
    "text", ["", "ssd", "resource:", "label:", "label:a", "label:=a", "label:a=", "node:abc"]
)
def test_an_invalid_pin_is_refused(text: str) -> None:
    with pytest.raises(VeloError, match="a pin reads"):
        Pin.parse(text)


def test_memory_is_divided_by_rows(tmp_path: Path) -> None:
    collection = read_collection(write(tmp_path / "c", document()))
    assert split_memory(collection, None) == [None, None]
    assert split_memory(collection, 300) == [100, 200]
    assert split_memory(collection, "50%") == [160, 320]
