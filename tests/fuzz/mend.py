"""Puts every checksum of an index right after its files were changed, as a bug or an attacker would."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from tests.fuzz.fields import PAGES, POSTINGS, POSTINGS_COLUMN, vectors_page_size, walk

MANIFEST: Final = "manifest.json"
_CHUNK_BYTES: Final = 1 << 20
_CHECKSUM_KEY: Final = ',\n  "checksum": "'


def file_sum(data: bytes) -> str:
    """The checksum of a file as the manifest has it."""
    sums = [xxh3_64_intdigest(data[at : at + _CHUNK_BYTES]) for at in range(0, len(data), _CHUNK_BYTES)]
    return f"{xxh3_64_intdigest(struct.pack(f'<{len(sums)}Q', *sums)):016x}"


def manifest_bytes(text: str) -> bytes:
    """A manifest of this JSON object (indented by two, without its checksum), with its checksum."""
    body = text.rstrip().removesuffix("}").rstrip().encode()
    return body + f'{_CHECKSUM_KEY}{xxh3_64_intdigest(body):016x}"\n}}\n'.encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest without its checksum."""
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    del manifest["checksum"]
    return manifest


def mended(name: str, data: bytearray, manifest: Mapping[str, Any]) -> None:
    """The checksums inside a file; what a changed field puts outside the file stays as it is."""
    page_size = int(manifest["page_size"])
    if name == "vectors.bin":
        _mend_pages(data, 0, vectors_page_size(manifest))
    elif name == "pages.bin":
        _mend_pages(data, page_size, page_size)
        _, _, end = walk(PAGES, bytes(data))
        end = -(-end // 64) * 64
        struct.pack_into("<Q", data, 8, xxh3_64_intdigest(bytes(data[16:end])))
    elif name.endswith(".postings"):
        _mend_postings(data)


def _mend_pages(data: bytearray, begin: int, size: int) -> None:
    for at in range(begin, len(data) - size + 1, size):
        struct.pack_into("<Q", data, at, xxh3_64_intdigest(bytes(data[at + 8 : at + size])))


def _mend_postings(data: bytearray) -> None:
    _, numbers, at = walk(POSTINGS, bytes(data))
    for _ in range(min(numbers["column_count"], 1_000)):
        if at + 80 > len(data):
            break
        fields, column, after = walk(POSTINGS_COLUMN, bytes(data), at)
        places = {field.name: field.at for field in fields}
        segment = bytes(data[column["part_at"] : column["part_at"] + column["part_size"]])
        struct.pack_into("<Q", data, places["part_checksum"], xxh3_64_intdigest(segment))
        if column["signatures_at"]:
            begin = column["signatures_at"]
            signatures = bytes(data[begin : begin + 8 * numbers["n"]])
            struct.pack_into("<Q", data, places["signatures_checksum"], xxh3_64_intdigest(signatures))
        at = after
    directory = bytes(data[16 : numbers["directory_size"]])
    struct.pack_into("<Q", data, 8, xxh3_64_intdigest(directory))


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Put a file in the place of one that other folders may share as a hard link."""
    beside = folder / f"{name}.fuzz"
    beside.write_bytes(data)
    os.replace(beside, folder / name)


def mend(folder: Path, names: tuple[str, ...] | list[str]) -> None:
    """Mend these files and the manifest that names them."""
    manifest = read_manifest(folder)
    for name in names:
        data = bytearray((folder / name).read_bytes())
        mended(name, data, manifest)
        replace_file(folder, name, bytes(data))
        for entry in manifest["files"]:
            if entry["name"] == name:
                entry["bytes"], entry["checksum"] = len(data), file_sum(bytes(data))
    replace_file(folder, MANIFEST, manifest_bytes(json.dumps(manifest, indent=2, ensure_ascii=False)))
