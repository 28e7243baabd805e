"""Changes to the files of an index, drawn from a seed: fields, buffers of Arrow files, values of JSON."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.fuzz.fields import KINDS, TABLES, Field, fields_of
from tests.fuzz.mend import MANIFEST, file_sum, manifest_bytes, mended, read_manifest, replace_file

#: Stands for a value that no JSON library writes; replaced in the text.
_RAW: Final = "@raw@"
_RAW_JSON: Final = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 20_000 + "1" + "}" * 20_000,
    "1" * 5_000,
    '"\\ud800"',
)


@dataclass
class Sound:
    """An index to take copies of, with its files in memory."""

    folder: Path
    files: dict[str, bytes]
    fields: dict[str, list[Field]]
    manifest: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Sound:
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        manifest = read_manifest(folder)
        fields = {
            name: list(fields_of(name, data, manifest)) for name, data in files.items() if name in TABLES
        }
        for name in files:
            if name.endswith(".arrow"):
                fields[name] = arrow_fields(folder / name)
        return cls(folder, files, fields, manifest)

    @property
    def related(self) -> tuple[int, ...]:
        """Numbers that others are compared with."""
        m = self.manifest
        near = (m["n"], m["dim"], m["page_count"], m["page_size"], m["degree"], m["links_built"], 512, 255)
        return tuple(number + step for number in near for step in (-1, 0, 1))


def arrow_fields(path: Path) -> list[Field]:
    """The buffers of all columns of an Arrow file as fields, found by where the file is mapped."""
    fields: list[Field] = []
    with pa.memory_map(str(path)) as mapped:
        whole = mapped.read_buffer()
        batch = pa.ipc.open_file(whole).get_batch(0)

        def add(name: str, buffer: Any, kinds: tuple[str, ...]) -> None:
            if buffer is None or buffer.size < 8:
                return
            at = buffer.address - whole.address
            if 0 <= at < whole.size:
                fields.extend(
                    Field(name, kind, at, buffer.size // struct.calcsize(KINDS[kind])) for kind in kinds
                )

        def visit(name: str, array: Any) -> None:
            buffers = array.buffers()
            add(f"{name}.validity", buffers[0], ("u8",))
            if pa.types.is_dictionary(array.type):
                add(f"{name}.codes", buffers[1], ("i32",))
                visit(f"{name}.dictionary", array.dictionary)
            elif pa.types.is_list(array.type):
                add(f"{name}.offsets", buffers[1], ("i32",))
                visit(f"{name}.values", array.values)
            elif pa.types.is_large_string(array.type):
                add(f"{name}.offsets", buffers[1], ("i64",))
                add(f"{name}.text", buffers[2], ("u8",))
            elif len(buffers) > 1:
                add(f"{name}.numbers", buffers[1], ("u64", "u32", "u8"))

        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            visit(name, column)
    return fields


def number(draw: random.Random, kind: str, before: float, related: tuple[int, ...]) -> float:
    """Another value of a field: a bound of its type, one near what it is compared with, a bit, a step."""
    if kind in ("f32", "f64"):
        return draw.choice(
            (
                float("nan"),
                float("inf"),
                float("-inf"),
                0.0,
                -before,
                max(-3e38, min(before * 1e6, 3e38)),
                3e38,
                -3e38,
                1e-45,
                draw.uniform(-10, 10),
            )
        )
    bits = 8 * struct.calcsize(KINDS[kind])
    least = -(1 << (bits - 1)) if kind[0] == "i" else 0
    greatest = (1 << (bits - (kind[0] == "i"))) - 1
    drawn = draw.choice(
        (
            draw.choice((0, 1, -1, least, greatest, greatest - 1, greatest >> 1, 1 << (bits // 2))),
            draw.choice(related),
            int(before) ^ (1 << draw.randrange(bits)),
            int(before) + draw.choice((-2, -1, 1, 2, 8, 64)),
            draw.randrange(least, greatest + 1),
        )
    )
    wrapped = drawn & ((1 << bits) - 1)
    return wrapped - (1 << bits) if wrapped > greatest else wrapped


def change_field(draw: random.Random, data: bytearray, field: Field, related: tuple[int, ...]) -> str:
    """Change one number of a field; says what became of it."""
    # The ends of arrays are where bounds are off by one.
    place = draw.choice((0, field.count - 1, draw.randrange(field.count), draw.randrange(field.count)))
    at = field.at + place * field.size
    before = struct.unpack_from(KINDS[field.kind], data, at)[0]
    after = number(draw, field.kind, before, related)
    struct.pack_into(KINDS[field.kind], data, at, after)
    return f"{field.name}[{place}] at {at}: {before} -> {after}"


def change_blindly(draw: random.Random, data: bytearray) -> str:
    """Change, cut, repeat or move bytes anywhere."""
    size = len(data)
    way = draw.randrange(8)
    if way < 5 or size < 64:
        kind = draw.choice(("u8", "u16", "u32", "u64", "f32"))
        width = struct.calcsize(KINDS[kind])
        # Headers and footers stand at the ends.
        around = draw.choice((range(size), range(min(size, 1024)), range(max(0, size - 1024), size)))
        at = max(0, min(draw.choice(around), size - width)) // width * width
        return change_field(draw, data, Field("bytes", kind, at), (size, size - 1, size + 1))
    begin = draw.randrange(size)
    end = min(size, begin + draw.choice((1, 8, 64, 4096)))
    if way == 5:
        del data[begin:end]
        return f"bytes {begin} to {end} cut out"
    if way == 6:
        data[begin:begin] = data[begin:end]
        return f"bytes {begin} to {end} twice"
    data[begin:end] = draw.choice((b"\0", b"\xff")) * (end - begin)
    return f"bytes {begin} to {end} all {data[begin]}"


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        found += _places(one, (*path, key))
    return found


def change_json(draw: random.Random, value: Any) -> tuple[str, str | None]:
    """Change one value of a JSON object in place; says what, and the text for ``_RAW`` if that is there."""
    place = draw.choice(_places(value))
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    before = holder[place[-1]]
    raw = None
    way = draw.randrange(4)
    if way == 0 and isinstance(holder, dict):
        del holder[place[-1]]
        return f"{place} taken out", None
    if way == 1:
        raw = draw.choice(_RAW_JSON)
        after: Any = _RAW
    elif way == 2 and isinstance(before, int | float) and not isinstance(before, bool):
        after = draw.choice(
            (0, 1, -1, before + 1, before - 1, 2**31, 2**32, 2**63, 2**64, 2**70, 10**30, before + 0.5)
        )
    else:
        after = draw.choice(
            (None, True, 0, -1, 2**70, 1e300, "", "x" * 70_000, "../../etc/passwd", [], {}, [1], {"a": 1})
        )
    holder[place[-1]] = after
    shown = raw if raw is not None else after
    return f"{place}: {str(before)[:40]!r} -> {str(shown)[:40]!r}", raw


def mutate(sound: Sound, folder: Path, seed: int) -> list[str]:
    """Make `folder` a copy of a sound index with one to three changes and mended sums; says what was changed.

    Files that stay as they are become hard links.
    """
    draw = random.Random(seed)
    files = {name: bytearray(data) for name, data in sound.files.items() if name != MANIFEST}
    manifest = json.loads(json.dumps(sound.manifest))
    said: list[str] = []
    changed: set[str] = set()
    raws: list[str] = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        name = draw.choice([*files, MANIFEST])
        if name == MANIFEST:
            what, raw = change_json(draw, manifest)
            raws += [] if raw is None else [raw]
        elif name.endswith(".stats") and draw.random() < 0.8 and name not in changed:
            statistics = json.loads(files[name])
            what, raw = change_json(draw, statistics)
            files[name][:] = json.dumps(statistics).replace(f'"{_RAW}"', raw or "").encode()
        elif name in sound.fields and len(files[name]) == len(sound.files[name]) and draw.random() < 0.75:
            # By name first: else nearly all would be codes and lists, the most frequent ones.
            by_name: dict[str, list[Field]] = {}
            for field in sound.fields[name]:
                by_name.setdefault(field.name, []).append(field)
            what = change_field(
                draw, files[name], draw.choice(by_name[draw.choice(sorted(by_name))]), sound.related
            )
        else:
            what = change_blindly(draw, files[name])
        if name != MANIFEST:
            changed.add(name)
        said.append(f"{name}: {what}")

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    entries = {str(entry.get("name")): entry for entry in _listed(manifest)}
    for name, data in files.items():
        if name not in changed:
            os.link(sound.folder / name, folder / name)
            continue
        _try_to_mend(name, data, sound.manifest)
        (folder / name).write_bytes(data)
        if name in entries:
            entries[name]["bytes"], entries[name]["checksum"] = len(data), file_sum(bytes(data))
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    for raw in raws:
        text = text.replace(f'"{_RAW}"', raw, 1)
    replace_file(folder, MANIFEST, manifest_bytes(text))
    return said


def _listed(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    files = manifest.get("files")
    return [entry for entry in files if isinstance(entry, dict)] if isinstance(files, list) else []


def _try_to_mend(name: str, data: bytearray, manifest: dict[str, Any]) -> None:
    try:
        mended(name, data, manifest)
    except struct.error:
        return  # too short to mend
