//! Neighbor lists as bits: those of links.bin, and the values that those of pages (page_lists.zig) are made of too. A list
//! is stored sorted, as gaps, because ids are placement order and neighbors lie close
//! together; the order that pruning gave them (nearest first) is lost on purpose.
//!
//! A list of `count` neighbors of vertex `v`:
//!
//!   count            8 bits
//!   first id         class of zigzag(first - v) by the table `first`, then class - 1 raw bits
//!   every next id    class of (id - previous - 1) by the table `gap`, then class - 1 raw bits
//!
//! The class of a value is its bit width (0 for 0), so a value of class c > 0 is 2^(c-1) plus its c - 1 raw bits. The
//! classes are written with a canonical prefix code of at most `code_length_max` bits, trained on the graph itself and
//! stored as its lengths. Bits run from the least significant bit of the first byte upwards.
const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;

pub const class_count = 33; // values below 2^32; ids below 2^31, so that a signed difference of two fits
pub const code_length_max = 10; // one table of 1,024 entries decodes every code in one step
pub const neighbors_max = 255;
/// Readers load 8 bytes at a time and may look that far past a list.
pub const over_read_bytes = 8;

pub const Histogram = [class_count]u64;

pub inline fn class_of(value: u32) u6 {
    return @intCast(32 - @clz(value));
}

inline fn zigzag(delta: i64) u32 {
    return @truncate(@as(u64, @bitCast((delta << 1) ^ (delta >> 63))));
}

inline fn unzigzag(value: u32) i64 {
    return @as(i64, value >> 1) ^ -@as(i64, value & 1);
}

/// A canonical prefix code over the classes.
pub const PrefixCode = struct {
    lengths: [class_count]u8,
    codes: [class_count]u16, // bit-reversed: the first bit of the code is the lowest
    decode_table: [1 << code_length_max]Entry,

    /// The size of a class: bits of its code and its raw bits together, of its code, its raw bits, and the bit above those,
    /// which only zero lacks.
    const Entry = packed struct(u16) {
        total: u6,
        length: u4,
        raw_bits: u5,
        top: u1,

        inline fn value(entry: Entry, word: u64) u32 {
            const raw = (word >> entry.length) & ((@as(u64, 1) << entry.raw_bits) - 1);
            return @truncate(raw | @as(u64, entry.top) << entry.raw_bits);
        }
    };

    inline fn entry_of(self: *const PrefixCode, word: u64) Entry {
        return self.decode_table[@as(usize, @truncate(word & ((1 << code_length_max) - 1)))];
    }

    /// The best code with lengths up to `code_length_max` for these counts. Every class gets a code, so that a table
    /// trained on a sample can still write what the sample did not hold.
    pub fn train(histogram: *const Histogram) PrefixCode {
        // Package-merge over 33 symbols: exact and small.
        const Item = struct { weight: u64, used: [class_count]u8 };
        var leaves: [class_count]Item = undefined;
        for (&leaves, 0..) |*leaf, class| {
            leaf.* = .{ .weight = histogram[class] * class_count + 1, .used = @splat(0) };
            leaf.used[class] = 1;
        }
        const less = struct {
            fn less(_: void, a: Item, b: Item) bool {
                return a.weight < b.weight;
            }
        }.less;
        std.sort.insertion(Item, &leaves, {}, less);
        var row: [2 * class_count]Item = undefined;
        var row_len: usize = class_count;
        @memcpy(row[0..class_count], &leaves);
        for (1..code_length_max) |_| {
            var packages: [class_count]Item = undefined;
            const package_count = row_len / 2;
            for (packages[0..package_count], 0..) |*package, i| {
                const a = row[2 * i];
                const b = row[2 * i + 1];
                package.weight = a.weight + b.weight;
                for (&package.used, a.used, b.used) |*u, x, y| u.* = x + y;
            }
            @memcpy(row[0..class_count], &leaves);
            @memcpy(row[class_count..][0..package_count], packages[0..package_count]);
            row_len = class_count + package_count;
            std.sort.insertion(Item, row[0..row_len], {}, less);
        }
        var lengths: [class_count]u8 = @splat(0);
        for (row[0 .. 2 * class_count - 2]) |item| {
            for (&lengths, item.used) |*length, used| length.* += used;
        }
        return from_lengths(lengths) catch unreachable; // package-merge fills the code space exactly
    }

    /// error.BadCode: the lengths are not those of a complete prefix code.
    pub fn from_lengths(lengths: [class_count]u8) error{BadCode}!PrefixCode {
        var self: PrefixCode = .{ .lengths = lengths, .codes = @splat(0), .decode_table = undefined };
        var space: u32 = 0;
        for (lengths) |length| {
            if (length == 0 or length > code_length_max) return error.BadCode;
            space += @as(u32, 1) << @intCast(code_length_max - length);
        }
        if (space != 1 << code_length_max) return error.BadCode;
        var next: u32 = 0;
        for (1..code_length_max + 1) |length| {
            for (0..class_count) |class| {
                if (lengths[class] != length) continue;
                const code: u16 = @intCast(next >> @intCast(code_length_max - length));
                next += @as(u32, 1) << @intCast(code_length_max - length);
                const reversed = @bitReverse(code) >> @intCast(16 - length);
                self.codes[class] = reversed;
                const raw_bits = class -| 1;
                const entry: Entry = .{ .total = @intCast(length + raw_bits), .length = @intCast(length), .raw_bits = @intCast(raw_bits), .top = @intFromBool(class > 0) };
                var index: u32 = reversed;
                while (index < self.decode_table.len) : (index += @as(u32, 1) << @intCast(length))
                    self.decode_table[index] = entry;
            }
        }
        return self;
    }

    pub inline fn bits_of(self: *const PrefixCode, value: u32) u32 {
        const class = class_of(value);
        return self.lengths[class] + (class -| 1);
    }
};

pub const Codec = struct {
    first: PrefixCode,
    gap: PrefixCode,

    pub const Statistics = struct {
        first: Histogram = @splat(0),
        gap: Histogram = @splat(0),

        /// `ids` ascending, without duplicates.
        pub fn count(self: *Statistics, vertex: u32, ids: []const u32) void {
            if (ids.len == 0) return;
            self.first[class_of(zigzag(@as(i64, ids[0]) - vertex))] += 1;
            for (ids[0 .. ids.len - 1], ids[1..]) |previous, id| self.gap[class_of(id - previous - 1)] += 1;
        }
    };

    pub fn train(statistics: *const Statistics) Codec {
        return .{ .first = .train(&statistics.first), .gap = .train(&statistics.gap) };
    }

    pub const stored_bytes = 2 * class_count;

    pub fn store(self: *const Codec, out: *[stored_bytes]u8) void {
        out[0..class_count].* = self.first.lengths;
        out[class_count..].* = self.gap.lengths;
    }

    pub fn load(bytes: *const [stored_bytes]u8) error{BadCode}!Codec {
        return .{
            .first = try .from_lengths(bytes[0..class_count].*),
            .gap = try .from_lengths(bytes[class_count..].*),
        };
    }

    pub fn encoded_bits(self: *const Codec, vertex: u32, ids: []const u32) u32 {
        var bits: u32 = 8;
        if (ids.len == 0) return bits;
        bits += self.first.bits_of(zigzag(@as(i64, ids[0]) - vertex));
        for (ids[0 .. ids.len - 1], ids[1..]) |previous, id| bits += self.gap.bits_of(id - previous - 1);
        return bits;
    }

    pub fn encoded_bytes(self: *const Codec, vertex: u32, ids: []const u32) u32 {
        return (self.encoded_bits(vertex, ids) + 7) / 8;
    }

    /// Writes `encoded_bytes` bytes and returns their count. `ids` ascending, without duplicates.
    pub fn encode(self: *const Codec, vertex: u32, ids: []const u32, out: []u8) u32 {
        assert(ids.len <= neighbors_max);
        var writer: Writer = .{ .out = out };
        writer.put(ids.len, 8);
        if (ids.len > 0) {
            writer.value(&self.first, zigzag(@as(i64, ids[0]) - vertex));
            for (ids[0 .. ids.len - 1], ids[1..]) |previous, id| writer.value(&self.gap, id - previous - 1);
        }
        return writer.finish();
    }

    pub const DecodeError = error{ BadList, TooManyNeighbors };

    /// Decodes a list of vertex `vertex` that lies in `bytes[0..length]` into `out`; `bytes` must be readable for
    /// `over_read_bytes` more. Ids come ascending and below `n`; anything else is error.BadList.
    pub fn decode(self: *const Codec, vertex: u32, bytes: [*]const u8, length: u32, n: u32, out: []u32) DecodeError![]u32 {
        // Every bound that bytes could break is compared here or in `Reader.value`.
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        if (length == 0) return error.BadList;
        const count: u32 = bytes[0];
        if (count > out.len) return error.TooManyNeighbors;
        if (count == 0) return out[0..0];
        var reader: Reader = .{ .bytes = bytes, .position = 8, .end = length * 8 };
        const first = @as(i64, vertex) + unzigzag(try reader.value(&self.first));
        if (first < 0 or first >= n) return error.BadList;
        var id: u64 = @intCast(first);
        out[0] = @intCast(id);
        var i: u32 = 1;
        while (i + 1 < count) : (i += 2) {
            const two = try reader.two_values(&self.gap);
            id += @as(u64, two[0]) + 1;
            out[i] = @truncate(id);
            id += @as(u64, two[1]) + 1;
            out[i + 1] = @truncate(id);
        }
        if (i < count) {
            id += @as(u64, try reader.value(&self.gap)) + 1;
            out[i] = @truncate(id);
        }
        // Gaps only grow, so the last id bounds all of them.
        if (id >= n) return error.BadList;
        return out[0..count];
    }
};

pub const Writer = struct {
    out: []u8,
    pending: u64 = 0,
    pending_bits: u6 = 0,
    written: u32 = 0,

    pub fn put(self: *Writer, bits: u64, count: u6) void {
        assert(count <= 32);
        self.pending |= bits << self.pending_bits;
        self.pending_bits += count;
        while (self.pending_bits >= 8) {
            self.out[self.written] = @truncate(self.pending);
            self.written += 1;
            self.pending >>= 8;
            self.pending_bits -= 8;
        }
    }

    pub fn value(self: *Writer, code: *const PrefixCode, v: u32) void {
        const class = class_of(v);
        self.put(code.codes[class], @intCast(code.lengths[class]));
        if (class > 1) self.put(v & ~(@as(u32, 1) << @intCast(class - 1)), class - 1);
    }

    pub fn finish(self: *Writer) u32 {
        if (self.pending_bits > 0) {
            self.out[self.written] = @truncate(self.pending);
            self.written += 1;
        }
        return self.written;
    }
};

pub const Reader = struct {
    bytes: [*]const u8,
    position: u32,
    end: u32,

    pub inline fn value(self: *Reader, code: *const PrefixCode) error{BadList}!u32 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const word = try self.word_at(self.position);
        const entry = code.entry_of(word);
        self.position += entry.total;
        return entry.value(word);
    }

    /// Of two values the second is found without a load of its own where both lie in one word: nearly always, and where one
    /// value begins is what takes time.
    inline fn two_values(self: *Reader, code: *const PrefixCode) error{BadList}![2]u32 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const word = try self.word_at(self.position);
        const first = code.entry_of(word);
        const between = self.position + first.total;
        if (between >= self.end) return error.BadList;
        var rest = word >> first.total;
        const second = code.entry_of(rest); // its code is there in any case, perhaps not all of its raw bits
        if (@as(u32, first.total) + second.total > word_bits) rest = try self.word_at(between);
        self.position = between + second.total;
        return .{ first.value(word), second.value(rest) };
    }

    /// Bits that a word has at least.
    const word_bits = 64 - 7;

    comptime {
        assert(word_bits >= 2 * code_length_max + 31);
    }

    inline fn word_at(self: *const Reader, position: u32) error{BadList}!u64 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        if (position >= self.end) return error.BadList;
        return std.mem.readInt(u64, self.bytes[position / 8 ..][0..8], .little) >> @intCast(position % 8);
    }

    /// At most 31 bits as they are.
    pub inline fn bits(self: *Reader, count: u6) error{BadList}!u32 {
        const word = try self.word_at(self.position);
        self.position += count;
        return @intCast(word & ((@as(u64, 1) << count) - 1));
    }
};

test "lengths that are no complete prefix code are refused" {
    var lengths: [class_count]u8 = @splat(1);
    try std.testing.expectError(error.BadCode, PrefixCode.from_lengths(lengths));
    lengths = @splat(10);
    try std.testing.expectError(error.BadCode, PrefixCode.from_lengths(lengths));
    lengths[3] = 0;
    try std.testing.expectError(error.BadCode, PrefixCode.from_lengths(lengths));
}

test "a list whose last id is n is a bad list, by the first id and by a gap" {
    var statistics: Codec.Statistics = .{};
    statistics.count(5, &.{ 1, 2, 9, 700 });
    const codec = Codec.train(&statistics);
    var bytes: [64]u8 = @splat(0);
    var out: [8]u32 = undefined;
    for ([_][]const u32{ &.{99}, &.{ 3, 99 }, &.{ 97, 98, 99 } }) |ids| {
        const length = codec.encode(7, ids, &bytes);
        try std.testing.expectEqualSlices(u32, ids, try codec.decode(7, &bytes, length, 100, &out));
        try std.testing.expectError(error.BadList, codec.decode(7, &bytes, length, 99, &out));
    }
}
