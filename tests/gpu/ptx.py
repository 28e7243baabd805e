"""A machine for the PTX that the kernels use: one warp, whose lanes are numpy arrays.

Lanes have program counters of their own. The lane that is behind goes first, so that lanes meet again
behind a branch. An instruction of the whole warp waits for all lanes: without the last of them a card would
hang. Memory is checked: bounds, alignment, that nothing of global memory is read before it was written, and
that no lane reads what another wrote to shared memory, or overwrites what another read, without a barrier in
between.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

LANES = 32
Lanes = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_SHARED_AT = 0x400
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")

_INSTRUCTION = re.compile(r"(?:@(!?%\w+)\s+)?(.*);")
_UPPER_HALF = re.compile(r"\{ \.reg \.b32 tmp; mov\.b64 \{tmp, (%r\d+)\}, (%rd\d+); \}")


class Memory:
    """Bytes that know which of them were written."""

    def __init__(self, base: int, size: int) -> None:
        self.base = base
        self.bytes = np.full(size, 0xAA, np.uint8)
        self.written = np.zeros(size, np.bool_)

    def put(self, at: int, data: bytes) -> None:
        place = at - self.base
        self.bytes[place : place + len(data)] = np.frombuffer(data, np.uint8)
        self.written[place : place + len(data)] = True

    def places(self, at: Lanes, width: int) -> npt.NDArray[np.int64]:
        assert not (at % np.uint64(width)).any(), f"not aligned to {width}: {at}"
        places = at.astype(np.int64) - self.base
        assert (places >= 0).all(), f"below memory: {at}"
        assert (places + width <= len(self.bytes)).all(), f"behind memory: {at}"
        return places[:, None] + np.arange(width)

    def load(self, at: Lanes, width: int) -> npt.NDArray[np.uint8]:
        places = self.places(at, width)
        assert self.written[places].all(), f"read before it was written: {at}"
        return self.bytes[places]

    def store(self, at: Lanes, data: npt.NDArray[np.uint8]) -> None:
        places = self.places(at, data.shape[1])
        self.bytes[places] = data
        self.written[places] = True


class Shared(Memory):
    """Memory of a warp, which knows who used it since the last barrier."""

    def __init__(self, size: int) -> None:
        super().__init__(_SHARED_AT, size)
        self.writer = np.full(size, -1)
        self.reader = np.full(size, -1)

    def barrier(self, orders_memory: bool) -> None:
        """All lanes have come as far; ``bar`` shows them each other's stores, too."""
        self.reader[:] = -1
        if orders_memory:
            self.writer[:] = -1

    def load_by(self, lanes: npt.NDArray[np.int64], at: Lanes, width: int) -> npt.NDArray[np.uint8]:
        places = self.places(at, width)
        writers = self.writer[places]
        assert ((writers == -1) | (writers == lanes[:, None])).all(), f"what others just wrote: {at}"
        self.reader[places] = lanes[:, None]
        return self.bytes[places]

    def store_by(self, lanes: npt.NDArray[np.int64], at: Lanes, data: npt.NDArray[np.uint8]) -> None:
        places = self.places(at, data.shape[1])
        readers = self.reader[places]
        assert ((readers == -1) | (readers == lanes[:, None])).all(), f"what others still read: {at}"
        self.writer[places] = lanes[:, None]
        self.bytes[places] = data


@dataclass
class Instruction:
    text: str
    name: list[str]
    operands: list[str]
    predicate: str | None
    negated: bool


@dataclass
class Entry:
    """A kernel."""

    parameters: dict[str, int] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[str, list[str]] = field(default_factory=dict)


def parse(text: str, name: str) -> Entry:
    """One entry of a module."""
    body = re.search(rf"\.visible \.entry {name}\((.*?)\)\n\{{\n(.*?)\n\}}", text, re.DOTALL)
    assert body, f"no entry {name}"
    entry = Entry()
    for align, parameter, size in re.findall(r"\.param \.align (\d+) \.b8 (\w+)\[(\d+)\]", body[1]):
        assert int(align) <= 8
        entry.parameters[parameter] = int(size)
    listed: list[str] | None = None
    for raw in body[2].split("\n"):
        line = raw.split("//")[0].strip()
        if listed is not None:
            listed.extend(re.findall(r"\$\w+", line))
            listed = None if line.endswith(";") else listed
        elif label := re.fullmatch(r"(\$\w+): \.branchtargets", line):
            listed = entry.targets[label[1]] = []
        elif label := re.fullmatch(r"(\$\w+):", line):
            entry.labels[label[1]] = len(entry.instructions)
        elif half := _UPPER_HALF.fullmatch(line):
            entry.instructions.append(
                Instruction(line, ["shr", "b64"], [half[1], half[2], "32"], None, False)
            )
        elif line and not line.startswith("."):
            parts = _INSTRUCTION.fullmatch(line)
            assert parts, f"no instruction: {line}"
            guard, words = parts.groups()
            code, _, rest = words.replace("\t", " ").partition(" ")
            entry.instructions.append(
                Instruction(
                    text=line,
                    name=code.split("."),
                    operands=_OPERAND.findall(rest),
                    predicate=guard.lstrip("!") if guard else None,
                    negated=bool(guard and guard.startswith("!")),
                )
            )
    return entry


def _mask(bits: int) -> np.uint64:
    mask: np.uint64 = np.uint64((1 << bits) - 1)
    return mask


def _signed(value: Lanes, bits: int) -> npt.NDArray[np.int64]:
    shift = np.int64(64 - bits)
    return np.asarray((value.view(np.int64) << shift) >> shift, np.int64)


def _floats(value: Lanes) -> npt.NDArray[np.float32]:
    return value.astype(np.uint32).view(np.float32)


def _of_floats(value: npt.NDArray[np.float32]) -> Lanes:
    return value.astype(np.float32).view(np.uint32).astype(np.uint64)


def _bytes_of(value: Lanes, width: int) -> npt.NDArray[np.uint8]:
    return value[:, None].view(np.uint8)[:, :width]


_COMPARE: dict[str, Callable[..., Bools]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


class Warp:
    """A run of one warp of a kernel."""

    def __init__(
        self,
        entry: Entry,
        parameters: list[bytes],
        global_memory: Memory,
        shared_bytes: int,
        thread: int = 0,
        threads: int = LANES,
        block: int = 0,
    ) -> None:
        self.entry = entry
        self.memory = global_memory
        self.shared = Shared(shared_bytes)
        self.registers: dict[str, Lanes] = {}
        assert [len(one) for one in parameters] == list(entry.parameters.values())
        self.parameters = dict(zip(entry.parameters, parameters, strict=True))
        lanes = np.arange(LANES, dtype=np.uint64)
        self.special: dict[str, Lanes] = {
            "%tid.x": lanes + np.uint64(thread),
            "%laneid": lanes,
            "%ntid.x": np.full(LANES, threads, np.uint64),
            "%ctaid.x": np.full(LANES, block, np.uint64),
            "shared_memory": np.full(LANES, _SHARED_AT, np.uint64),
        }
        self.at = np.zeros(LANES, np.int64)
        self.ended = np.zeros(LANES, np.bool_)
        self.steps = 0

    def run(self, most: int = 10_000_000) -> None:
        """To the end."""
        instructions = self.entry.instructions
        while not self.ended.all():
            self.steps += 1
            assert self.steps < most, "no end"
            places = np.unique(self.at[~self.ended])
            for place in places:
                active = (self.at == place) & ~self.ended
                one = instructions[place]
                if "sync" in one.name and not active.all():
                    continue  # others have to come
                break
            else:
                raise AssertionError(f"lanes never meet: {[instructions[p].text for p in places]}")
            try:
                self._step(one, active)
            except AssertionError as error:
                raise AssertionError(f"{one.text}: {error}") from None

    def _value(self, word: str) -> Lanes:
        if word in self.special:
            return self.special[word]
        if word.startswith("%"):
            assert word in self.registers, f"{word} was never set"
            return self.registers[word]
        if word.startswith("0f"):
            return np.full(LANES, int(word[2:], 16), np.uint64)
        return np.full(LANES, int(word) & (1 << 64) - 1, np.uint64)

    def _set(self, word: str, value: Lanes, active: Bools) -> None:
        old = self.registers.get(word)
        self.registers[word] = value.copy() if old is None else np.where(active, value, old)

    def _address(self, word: str) -> Lanes:
        base, _, offset = word[1:-1].partition("+")
        return np.asarray(self._value(base.strip()) + np.uint64(int(offset or 0) & (1 << 64) - 1), np.uint64)

    def _step(self, one: Instruction, active: Bools) -> None:
        if one.predicate is not None:
            holds = self._value(one.predicate).astype(np.bool_)
            taken = active & (~holds if one.negated else holds)
        else:
            taken = active
        kind = one.name[0]
        if kind == "bra":
            self.at[active] += 1
            self.at[taken] = self.entry.labels[one.operands[0]]
            return
        assert one.predicate is None, "only branches have predicates"
        if kind == "brx":
            chosen = self._value(one.operands[0])
            targets = self.entry.targets[one.operands[1]]
            for lane in np.flatnonzero(active):
                self.at[lane] = self.entry.labels[targets[int(chosen[lane])]]
            return
        if kind == "ret":
            self.ended |= active
            return
        self.at[active] += 1
        if "sync" in one.name:
            self.shared.barrier(orders_memory=kind == "bar")
        if kind in ("ld", "st"):
            self._move(one, active)
        elif kind == "bar":
            assert one.operands == ["-1"]
        else:
            result = self._compute(one)
            self._set(one.operands[0], result, active)

    def _move(self, one: Instruction, active: Bools) -> None:
        count = next((int(part[1:]) for part in one.name if re.fullmatch(r"v\d", part)), 1)
        width = int(one.name[-1][1:]) // 8
        space = one.name[1]
        register, address = one.operands if one.name[0] == "ld" else reversed(one.operands)
        names = register.strip("{}").replace(",", " ").split()
        assert len(names) == count
        if space == "param":
            base, _, offset = address[1:-1].partition("+")
            parameter = self.parameters[base]
            for i, name in enumerate(names):
                begin = int(offset or 0) + i * width
                number = int.from_bytes(parameter[begin : begin + width], "little")
                self._set(name, np.full(LANES, number, np.uint64), active)
            return
        assert space in ("shared", "global")
        lanes = np.flatnonzero(active)
        at = self._address(address)[active]
        if one.name[0] == "st":
            values = [_bytes_of(np.ascontiguousarray(self._value(name)[active]), width) for name in names]
            data = np.concatenate(values, axis=1)
            if space == "shared":
                self.shared.store_by(lanes, at, data)
            else:
                self.memory.store(at, data)
            return
        size = width * count
        loaded = self.shared.load_by(lanes, at, size) if space == "shared" else self.memory.load(at, size)
        for i, name in enumerate(names):
            padded = np.zeros((len(at), 8), np.uint8)
            padded[:, :width] = loaded[:, i * width : (i + 1) * width]
            value = np.zeros(LANES, np.uint64)
            value[active] = padded.view(np.uint64)[:, 0]
            self._set(name, value, active)

    def _compute(self, one: Instruction) -> Lanes:
        kind, *rest = one.name
        last = rest[-1]
        bits = int(last[1:]) if last[0] in "busf" and last[1:].isdigit() else 1
        bits = 2 * bits if "wide" in rest else bits
        operands = [self._value(word) for word in one.operands[1:]]
        if "sync" in rest:
            return self._together(kind, rest, operands)
        if last == "f32" and kind in ("add", "sub", "mul", "min", "max"):
            return self._of_two_floats(kind, *operands)
        with np.errstate(over="ignore"):
            return self._of_words(kind, rest, bits, operands) & _mask(bits if kind != "setp" else 1)

    @staticmethod
    def _of_two_floats(kind: str, first: Lanes, second: Lanes) -> Lanes:
        a, b = _floats(first), _floats(second)
        function = {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "min": np.fmin,
            "max": np.fmax,
        }[kind]
        return _of_floats(function(a, b))

    @staticmethod
    def _of_words(kind: str, rest: list[str], bits: int, operands: list[Lanes]) -> Lanes:
        a = operands[0]
        b = operands[1] if len(operands) > 1 else a
        signed = rest[-1].startswith("s")
        if kind == "mov":
            return a
        if kind == "setp":
            if rest[-1] == "f32":
                return _COMPARE[rest[0]](_floats(a), _floats(b)).astype(np.uint64)
            if signed:
                return _COMPARE[rest[0]](_signed(a, bits), _signed(b, bits)).astype(np.uint64)
            return _COMPARE[rest[0]](a & _mask(bits), b & _mask(bits)).astype(np.uint64)
        if kind == "selp":
            return np.where(operands[2].astype(np.bool_), a, b)
        if kind == "cvt":
            if rest[0] == "rn":
                assert rest[1:] == ["f32", "s32"]
                return _of_floats(_signed(a, 32).astype(np.float32))
            assert rest[0][0] == rest[1][0] == "u"
            return a & _mask(min(int(rest[0][1:]), int(rest[1][1:])))
        return _whole(kind, rest, bits, a, b, operands, signed)

    def _together(self, kind: str, rest: list[str], operands: list[Lanes]) -> Lanes:
        """Instructions between lanes."""
        members = operands[-1] & _mask(32)
        assert (members == _mask(32)).all(), "not all lanes"
        if kind == "shfl":
            assert (operands[2] == 31).all()
            lanes = np.arange(LANES, dtype=np.uint64)
            source = operands[1] & np.uint64(31) if "idx" in rest else lanes ^ operands[1]
            return operands[0][source.astype(np.int64)]
        if kind == "vote":
            assert "ballot" in rest
            number = sum(1 << i for i in range(LANES) if operands[0][i])
            return np.full(LANES, number, np.uint64)
        if kind == "match":
            value = operands[0]
            return np.array(
                [sum(1 << j for j in range(LANES) if value[i] == value[j]) for i in range(LANES)], np.uint64
            )
        assert (kind, *rest[:1]) == ("redux", "sync")
        reduced = {"min": np.minimum, "or": np.bitwise_or}[rest[1]].reduce(operands[0])
        return np.full(LANES, reduced, np.uint64)


def _whole(
    kind: str, rest: list[str], bits: int, a: Lanes, b: Lanes, operands: list[Lanes], signed: bool
) -> Lanes:
    """Arithmetic of words."""
    if kind == "add":
        return a + b
    if kind == "sub":
        return a - b
    if kind == "neg":
        return np.asarray(np.uint64(0) - a, np.uint64)
    if kind == "mul":
        return (a & _mask(32)) * (b & _mask(32)) if "wide" in rest else a * b
    if kind == "mad":
        assert "lo" in rest
        return a * b + operands[2]
    if kind == "div":
        assert not signed
        return a // b
    if kind in ("and", "or", "xor"):
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[kind](a, b)
    if kind == "not":
        return ~a
    if kind == "min":
        assert not signed
        return np.minimum(a, b)
    if kind == "popc":
        return np.array([int(x).bit_count() for x in a & _mask(bits)], np.uint64)
    if kind in ("shl", "shr"):
        by = b & _mask(32)
        shift = np.minimum(by, np.uint64(63))
        if kind == "shl":
            return np.asarray(np.where(by >= bits, np.uint64(0), a << shift), np.uint64)
        if signed:
            small = np.minimum(by, np.uint64(bits - 1)).astype(np.int64)
            return np.asarray(_signed(a, bits) >> small, np.int64).view(np.uint64)
        return np.asarray(np.where(by >= bits, np.uint64(0), (a & _mask(bits)) >> shift), np.uint64)
    if kind == "prmt":
        both = (a & _mask(32)) | (b & _mask(32)) << np.uint64(32)
        out = np.zeros(LANES, np.uint64)
        for i in range(4):
            chosen = operands[2] >> np.uint64(4 * i) & np.uint64(7)
            out |= (both >> (chosen * np.uint64(8)) & np.uint64(0xFF)) << np.uint64(8 * i)
        return out
    assert (kind, *rest) == ("dp4a", "u32", "s32"), f"{kind}.{'.'.join(rest)} is not known"
    x = _bytes_of(np.ascontiguousarray(a), 4).astype(np.int64)
    y = _bytes_of(np.ascontiguousarray(b), 4).view(np.int8).astype(np.int64)
    return np.asarray((x * y).sum(axis=1) + _signed(operands[2], 32), np.int64).view(np.uint64)
