//! Neighbor lists of pages as bits. Ids are placement order, so most neighbors of a vertex lie close to it and the rest
//! farther and farther away: a list is stored outward from its vertex, first those below, then those above, as gaps, and
//! the code of each gap is chosen by how wide the gap before it was.
//!
//! A list of `count` neighbors of vertex `v`, none of them v:
//!
//!   value of (longest - count), code `count_code`; `longest` is the same for all lists
//!   neighbors below v, in as many bits as `count` is wide; absent, like all that follows, if count is 0
//!   every neighbor below, descending    value of (previous - id - 1), previous v at first
//!   every neighbor above, ascending     value of (id - previous - 1), previous v at first
//!
//! A value is the code of its class (adjacency.zig), then its raw bits. The code of a gap is that of its context: the
//! class of the gap before on the same side, `contexts_by_gap - 1` at most, or the side itself where none was before.
const std = @import("std");
const adjacency = @import("adjacency.zig");
const assert = std.debug.assert;
const PrefixCode = adjacency.PrefixCode;
const class_count = adjacency.class_count;

pub const over_read_bytes = adjacency.over_read_bytes;
pub const neighbors_max = adjacency.neighbors_max;

const contexts_by_gap = 24;
const first_below = contexts_by_gap;
const first_above = contexts_by_gap + 1;
const count_code = contexts_by_gap + 2;
const code_count = contexts_by_gap + 3;

inline fn after(value: u32) usize {
    return @min(adjacency.class_of(value), contexts_by_gap - 1);
}

/// The number of ascending `ids` below `vertex`.
fn below_of(vertex: u32, ids: []const u32) u32 {
    var below: u32 = 0;
    while (below < ids.len and ids[below] < vertex) below += 1;
    assert(below == ids.len or ids[below] != vertex);
    return below;
}

fn width_of(count: u32) u6 {
    return @intCast(32 - @clz(count));
}

/// Calls `sink.gap(context, value)` for every gap of a list in the order in which they are stored.
inline fn each_gap(vertex: u32, ids: []const u32, below: u32, sink: anytype) void {
    var context: usize = first_below;
    var previous = vertex;
    var i = below;
    while (i > 0) {
        i -= 1;
        const value = previous - ids[i] - 1;
        sink.gap(context, value);
        context = after(value);
        previous = ids[i];
    }
    context = first_above;
    previous = vertex;
    for (ids[below..]) |id| {
        const value = id - previous - 1;
        sink.gap(context, value);
        context = after(value);
        previous = id;
    }
}

pub const Codec = struct {
    longest: u8,
    codes: [code_count]PrefixCode,

    pub const Statistics = struct {
        longest: u8,
        histograms: [code_count]adjacency.Histogram = @splat(@splat(0)),

        /// No list will be longer than `longest`.
        pub fn init(longest: u32) Statistics {
            return .{ .longest = @intCast(longest) };
        }

        /// `ids` ascending, without duplicates and without `vertex`.
        pub fn count(self: *Statistics, vertex: u32, ids: []const u32) void {
            self.gap(count_code, self.longest - @as(u32, @intCast(ids.len)));
            each_gap(vertex, ids, below_of(vertex, ids), self);
        }

        fn gap(self: *Statistics, context: usize, value: u32) void {
            self.histograms[context][adjacency.class_of(value)] += 1;
        }
    };

    pub fn train(statistics: *const Statistics) Codec {
        var self: Codec = .{ .longest = statistics.longest, .codes = undefined };
        for (&self.codes, &statistics.histograms) |*code, *histogram| code.* = .train(histogram);
        return self;
    }

    pub const stored_bytes = 1 + code_count * class_count;

    pub fn store(self: *const Codec, out: *[stored_bytes]u8) void {
        out[0] = self.longest;
        for (&self.codes, 0..) |*code, i| out[1 + i * class_count ..][0..class_count].* = code.lengths;
    }

    pub fn load(bytes: *const [stored_bytes]u8) error{BadCode}!Codec {
        var self: Codec = .{ .longest = bytes[0], .codes = undefined };
        for (&self.codes, 0..) |*code, i| code.* = try .from_lengths(bytes[1 + i * class_count ..][0..class_count].*);
        return self;
    }

    pub fn encoded_bits(self: *const Codec, vertex: u32, ids: []const u32) u32 {
        const count: u32 = @intCast(ids.len);
        var counter: Counter = .{ .codec = self, .bits = self.codes[count_code].bits_of(self.longest - count) + width_of(count) };
        each_gap(vertex, ids, below_of(vertex, ids), &counter);
        return counter.bits;
    }

    pub fn encoded_bytes(self: *const Codec, vertex: u32, ids: []const u32) u32 {
        return (self.encoded_bits(vertex, ids) + 7) / 8;
    }

    /// Writes `encoded_bytes` bytes and returns their count. `ids` ascending, without duplicates and without `vertex`.
    pub fn encode(self: *const Codec, vertex: u32, ids: []const u32, out: []u8) u32 {
        assert(ids.len <= self.longest);
        const count: u32 = @intCast(ids.len);
        const below = below_of(vertex, ids);
        var writer: Writer = .{ .codec = self, .bits = .{ .out = out } };
        writer.gap(count_code, self.longest - count);
        writer.bits.put(below, width_of(count));
        each_gap(vertex, ids, below, &writer);
        return writer.bits.finish();
    }

    pub const DecodeError = adjacency.Codec.DecodeError;

    /// Decodes a list of vertex `vertex` that lies in `bytes[0..length]` into `out`; `bytes` must be readable for
    /// `over_read_bytes` more. Ids come ascending and below `n`; anything else is error.BadList.
    pub fn decode(self: *const Codec, vertex: u32, bytes: [*]const u8, length: u32, n: u32, out: []u32) DecodeError![]u32 {
        var reader: adjacency.Reader = .{ .bytes = bytes, .position = 0, .end = length * 8 };
        return self.decode_from(&reader, vertex, n, out);
    }

    /// As `decode`, for a list of unknown length within `bytes[0..room]`; `length` becomes the number of its bytes.
    pub fn decode_within(self: *const Codec, vertex: u32, bytes: [*]const u8, room: u32, n: u32, out: []u32, length: *u32) DecodeError![]u32 {
        var reader: adjacency.Reader = .{ .bytes = bytes, .position = 0, .end = room * 8 };
        const ids = try self.decode_from(&reader, vertex, n, out);
        if (reader.position > reader.end) return error.BadList;
        length.* = (reader.position + 7) / 8;
        return ids;
    }

    inline fn decode_from(self: *const Codec, reader: *adjacency.Reader, vertex: u32, n: u32, out: []u32) DecodeError![]u32 {
        const missing = try reader.value(&self.codes[count_code]);
        if (missing > self.longest) return error.BadList;
        const count = self.longest - missing;
        if (count > out.len) return error.TooManyNeighbors;
        if (count == 0) return out[0..0];
        const below = try reader.bits(width_of(count));
        if (below > count) return error.BadList;
        var context: usize = first_below;
        var id: i64 = vertex;
        var i = below;
        while (i > 0) {
            i -= 1;
            const value = try reader.value(&self.codes[context]);
            context = after(value);
            id -= @as(i64, value) + 1;
            out[i] = @truncate(@as(u64, @bitCast(id)));
        }
        // Ids only fall, so the last one bounds all of them; and so it does where they only grow.
        if (id < 0) return error.BadList;
        context = first_above;
        id = vertex;
        for (out[below..count]) |*slot| {
            const value = try reader.value(&self.codes[context]);
            context = after(value);
            id += @as(i64, value) + 1;
            slot.* = @truncate(@as(u64, @bitCast(id)));
        }
        if (id >= n) return error.BadList;
        return out[0..count];
    }
};

const Counter = struct {
    codec: *const Codec,
    bits: u32,

    inline fn gap(self: *Counter, context: usize, value: u32) void {
        self.bits += self.codec.codes[context].bits_of(value);
    }
};

const Writer = struct {
    codec: *const Codec,
    bits: adjacency.Writer,

    inline fn gap(self: *Writer, context: usize, value: u32) void {
        self.bits.value(&self.codec.codes[context], value);
    }
};

test "a list whose last id is n is a bad list, and so is one that goes below 0" {
    var statistics: Codec.Statistics = .init(64);
    statistics.count(5, &.{ 1, 2, 9, 700 });
    const codec = Codec.train(&statistics);
    var bytes: [64]u8 = @splat(0);
    var out: [64]u32 = undefined;
    for ([_][]const u32{ &.{99}, &.{ 3, 99 }, &.{ 97, 98, 99 } }) |ids| {
        const length = codec.encode(7, ids, &bytes);
        try std.testing.expectEqualSlices(u32, ids, try codec.decode(7, &bytes, length, 100, &out));
        try std.testing.expectError(error.BadList, codec.decode(7, &bytes, length, 99, &out));
    }
    // The same gaps from one vertex further down lead from 0 to -1.
    const length = codec.encode(7, &.{ 0, 3 }, &bytes);
    try std.testing.expectEqualSlices(u32, &.{ 0, 3 }, try codec.decode(7, &bytes, length, 100, &out));
    try std.testing.expectError(error.BadList, codec.decode(6, &bytes, length, 100, &out));
}

const codecs = .{ adjacency.Codec, Codec };

/// That of pages is made for lists of one greatest length, and a vertex is no neighbor of itself there.
fn statistics_of(comptime Any: type, longest: u32) Any.Statistics {
    return if (Any == Codec) .init(longest) else .{};
}

/// Up to `out.len` distinct ids below n, ascending; half of them near `vertex`.
fn random_list(comptime Any: type, random: std.Random, vertex: u32, n: u32, out: []u32) []u32 {
    var count: usize = 0;
    for (0..out.len) |_| {
        const id = if (random.boolean()) @min(n - 1, vertex -| 64 + random.uintLessThan(u32, 128)) else random.uintLessThan(u32, n);
        if (Any == Codec and id == vertex) continue;
        if (std.mem.indexOfScalar(u32, out[0..count], id) != null) continue;
        out[count] = id;
        count += 1;
    }
    std.mem.sort(u32, out[0..count], {}, std.sort.asc(u32));
    return out[0..count];
}

test "lists of every length survive a round trip, and the size is what encoded_bytes says" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    inline for (codecs) |Any| for ([_]u32{ 1, 2, 17, 1000, 1_000_000, 1 << 31 }) |n| {
        const longest: u32 = if (n == 1000 and Any == Codec) 48 else neighbors_max;
        var statistics = statistics_of(Any, longest);
        var buffer: [neighbors_max]u32 = undefined;
        for (0..200) |_| {
            const vertex = random.uintLessThan(u32, n);
            statistics.count(vertex, random_list(Any, random, vertex, n, buffer[0..@min(48, n)]));
        }
        const trained = Any.train(&statistics);
        var stored: [Any.stored_bytes]u8 = undefined;
        trained.store(&stored);
        const codec = try Any.load(&stored);
        for (0..500) |_| {
            const vertex = random.uintLessThan(u32, n);
            const ids = random_list(Any, random, vertex, n, buffer[0..random.uintAtMost(u32, @min(n, longest))]);
            var bytes: [2048]u8 = @splat(0xa5);
            const length = codec.encode(vertex, ids, &bytes);
            try std.testing.expectEqual(codec.encoded_bytes(vertex, ids), length);
            var out: [neighbors_max]u32 = undefined;
            try std.testing.expectEqualSlices(u32, ids, try codec.decode(vertex, &bytes, length, n, &out));
            if (Any == adjacency.Codec) continue;
            var found: u32 = undefined;
            try std.testing.expectEqualSlices(u32, ids, try codec.decode_within(vertex, &bytes, bytes.len - over_read_bytes, n, &out, &found));
            try std.testing.expectEqual(length, found);
        }
    };
}

test "random bytes never decode to an id outside the index, nor to ids out of order" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    inline for (codecs) |Any| {
        var statistics = statistics_of(Any, 64);
        statistics.count(5, &.{ 1, 2, 9, 700 });
        const codec = Any.train(&statistics);
        for (0..20_000) |_| {
            var bytes: [128 + adjacency.over_read_bytes]u8 = undefined;
            random.bytes(&bytes);
            var out: [64]u32 = undefined;
            const n = random.uintAtMost(u32, 5000) + 1;
            const ids = codec.decode(random.uintLessThan(u32, n), &bytes, random.uintAtMost(u32, 128), n, &out) catch continue;
            for (ids, 0..) |id, i| {
                try std.testing.expect(id < n);
                try std.testing.expect(i == 0 or ids[i - 1] < id);
            }
        }
    }
}
