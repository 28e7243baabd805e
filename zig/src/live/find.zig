//! ids.find: from an id to the vertex that has it, without the ids in memory. About four and a half bytes a row, mapped.
//!
//! The hash of an id leads to a bucket of about eight entries that lie side by side; an entry is a vertex and, in the bits
//! that a vertex does not need, some more of the hash. So nearly always only the id that is sought is looked at.
const std = @import("std");
const base = @import("base");
const diagnostics = @import("diagnostic.zig");

pub const file_name = "ids.find";
const header_bytes = 64;
const magic = "VELOFIND".*;
const version = 1;
const rows_a_bucket = 8;

/// Ids as they lie in Arrow's buffers: one a row, all whole numbers or all strings.
pub const Ids = union(enum) {
    numbers: []const i64,
    /// String i is bytes[offsets[i]..offsets[i + 1]].
    strings: struct { offsets: []const i64, bytes: []const u8 },

    pub fn len(self: Ids) usize {
        return switch (self) {
            .numbers => |numbers| numbers.len,
            .strings => |strings| strings.offsets.len -| 1,
        };
    }

    pub fn same_kind(self: Ids, other: Ids) bool {
        return std.meta.activeTag(self) == std.meta.activeTag(other);
    }

    /// Whether offsets of strings lie within their bytes, and ascend.
    pub fn is_whole(self: Ids) bool {
        const strings = switch (self) {
            .numbers => return true,
            .strings => |strings| strings,
        };
        var last: i64 = 0;
        for (strings.offsets) |offset| {
            if (offset < last) return false;
            last = offset;
        }
        return last <= strings.bytes.len;
    }

    pub fn text(self: Ids, row: usize) []const u8 {
        const strings = self.strings;
        return strings.bytes[@intCast(strings.offsets[row])..@intCast(strings.offsets[row + 1])];
    }

    pub fn hash(self: Ids, row: usize) u64 {
        switch (self) {
            .numbers => |numbers| {
                var bytes: [8]u8 = undefined;
                std.mem.writeInt(i64, &bytes, numbers[row], .little);
                return base.checksum(&bytes);
            },
            .strings => return base.checksum(self.text(row)),
        }
    }

    pub fn equal(self: Ids, row: usize, other: Ids, other_row: usize) bool {
        return switch (self) {
            .numbers => |numbers| numbers[row] == other.numbers[other_row],
            .strings => std.mem.eql(u8, self.text(row), other.text(other_row)),
        };
    }
};

const Shape = struct {
    n: u32,
    /// Of a hash: the bucket.
    bucket_bits: u5,
    vertex_bits: u6,

    fn of(n: u32) Shape {
        const bucket_count = std.math.ceilPowerOfTwo(u32, @max(1, n / rows_a_bucket)) catch unreachable; // n / 8 < 2^31
        return .{ .n = n, .bucket_bits = @intCast(@ctz(bucket_count)), .vertex_bits = @intCast(32 - @clz(n -| 1)) };
    }

    fn buckets(self: Shape) usize {
        return @as(usize, 1) << self.bucket_bits;
    }

    fn words(self: Shape) usize {
        return self.buckets() + 1 + self.n;
    }

    fn bucket(self: Shape, hash: u64) usize {
        return if (self.bucket_bits == 0) 0 else @intCast(hash >> @intCast(@as(u7, 64) - self.bucket_bits));
    }

    /// The lowest bits of the hash, which no bucket is chosen by, above the vertex.
    fn entry(self: Shape, hash: u64, vertex: u32) u32 {
        return @truncate(hash << self.vertex_bits | vertex);
    }
};

pub fn file_bytes(n: u64) usize {
    return header_bytes + 4 * Shape.of(@intCast(n)).words();
}

/// The file over ids that are all different.
pub fn encode(allocator: std.mem.Allocator, ids: Ids) error{OutOfMemory}![]align(4) u8 {
    const shape = Shape.of(@intCast(ids.len()));
    const bytes = try allocator.alignedAlloc(u8, .@"4", file_bytes(shape.n));
    @memset(bytes, 0);
    const words = std.mem.bytesAsSlice(u32, bytes[header_bytes..]);
    const starts = words[0 .. shape.buckets() + 1];
    const entries = words[shape.buckets() + 1 ..];
    for (0..shape.n) |row| starts[shape.bucket(ids.hash(row)) + 1] += 1;
    for (1..starts.len) |i| starts[i] += starts[i - 1];
    // Each start moves to its bucket's end as that fills; then all are one bucket too far.
    for (0..shape.n) |row| {
        const hash = ids.hash(row);
        const place = &starts[shape.bucket(hash)];
        entries[place.*] = shape.entry(hash, @intCast(row));
        place.* += 1;
    }
    std.mem.copyBackwards(u32, starts[1..], starts[0 .. starts.len - 1]);
    starts[0] = 0;
    for (words) |*word| word.* = std.mem.nativeToLittle(u32, word.*);
    bytes[8..16].* = magic;
    std.mem.writeInt(u32, bytes[16..20], version, .little);
    std.mem.writeInt(u64, bytes[24..32], shape.n, .little);
    std.mem.writeInt(u64, bytes[0..8], base.checksum(bytes[8..]), .little);
    return bytes;
}

/// Ids, and the place of one of them.
pub const Place = struct { Ids, usize };

pub const Finder = struct {
    shape: Shape,
    starts: []const u32,
    entries: []const u32,

    /// Reads the whole file once: an id that is not found for a flipped bit would be a row that cannot be deleted.
    pub fn parse(bytes: []align(4) const u8, n: u64) error{ Damaged, NewerVersion }!Finder {
        if (bytes.len < header_bytes or !std.mem.eql(u8, bytes[8..16], &magic)) return error.Damaged;
        if (std.mem.readInt(u64, bytes[0..8], .little) != base.checksum(bytes[8..])) return error.Damaged;
        if (std.mem.readInt(u32, bytes[16..20], .little) != version) return error.NewerVersion;
        if (n > base.limits.vertices_max or std.mem.readInt(u64, bytes[24..32], .little) != n) return error.Damaged;
        const shape = Shape.of(@intCast(n));
        if (bytes.len != file_bytes(n)) return error.Damaged;
        const words = std.mem.bytesAsSlice(u32, bytes[header_bytes..]);
        const self: Finder = .{ .shape = shape, .starts = words[0 .. shape.buckets() + 1], .entries = words[shape.buckets() + 1 ..] };
        var last: u32 = 0;
        for (self.starts) |raw| {
            const start = std.mem.littleToNative(u32, raw);
            if (start < last or start > n) return error.Damaged;
            last = start;
        }
        if (last != n) return error.Damaged;
        const mask = if (shape.vertex_bits == 32) ~@as(u32, 0) else (@as(u32, 1) << @intCast(shape.vertex_bits)) - 1;
        for (self.entries) |raw| if (std.mem.littleToNative(u32, raw) & mask >= n) return error.Damaged;
        return self;
    }

    /// The vertex whose id in `ids` is `asked[row]`.
    pub fn find(self: *const Finder, ids: Ids, asked: Ids, row: usize) ?u32 {
        if (self.shape.n == 0) return null;
        const hash = asked.hash(row);
        const bucket = self.shape.bucket(hash);
        const from = std.mem.littleToNative(u32, self.starts[bucket]);
        const to = std.mem.littleToNative(u32, self.starts[bucket + 1]);
        for (self.entries[from..to]) |raw| {
            const entry = std.mem.littleToNative(u32, raw);
            const vertex = if (self.shape.vertex_bits == 32) entry else entry & ((@as(u32, 1) << @intCast(self.shape.vertex_bits)) - 1);
            if (entry == self.shape.entry(hash, vertex) and ids.equal(vertex, asked, row)) return vertex;
        }
        return null;
    }
};

test "every id is found, and no other" {
    const allocator = std.testing.allocator;
    for ([_]usize{ 0, 1, 2, 7, 8, 9, 1000, 5000 }) |n| {
        var prng = base.Prng.init(n);
        const numbers = try allocator.alloc(i64, n);
        defer allocator.free(numbers);
        for (numbers, 0..) |*number, i| number.* = @as(i64, @intCast(i * 3)) - 1000;
        prng.shuffle(i64, numbers);
        const ids: Ids = .{ .numbers = numbers };
        const bytes = try encode(allocator, ids);
        defer allocator.free(bytes);
        try std.testing.expect(bytes.len <= 64 + 8 + 5 * n);
        const finder = try Finder.parse(bytes, n);
        for (0..n) |row| try std.testing.expectEqual(row, finder.find(ids, ids, row).?);
        for (numbers) |number| {
            const other: Ids = .{ .numbers = &.{number + 1} };
            try std.testing.expectEqual(null, finder.find(ids, other, 0));
        }
        try std.testing.expectError(error.Damaged, Finder.parse(bytes, n + 1));
        for (0..@min(400, bytes.len * 8)) |_| {
            const bit: usize = @intCast(prng.below(bytes.len * 8));
            bytes[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
            defer bytes[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
            try std.testing.expectError(error.Damaged, Finder.parse(bytes, n));
        }
    }
}

test "strings are ids, too: empty ones, long ones, ones that begin alike" {
    const allocator = std.testing.allocator;
    const words = [_][]const u8{ "", "a", "ab", "abc", "b", "a longer one that goes on for quite a while, and then ends", "ä" };
    var offsets: [words.len + 1]i64 = undefined;
    var all: std.ArrayList(u8) = .empty;
    defer all.deinit(allocator);
    for (words, 0..) |word, i| {
        offsets[i] = @intCast(all.items.len);
        try all.appendSlice(allocator, word);
    }
    offsets[words.len] = @intCast(all.items.len);
    const ids: Ids = .{ .strings = .{ .offsets = &offsets, .bytes = all.items } };
    try std.testing.expect(ids.is_whole());
    const bytes = try encode(allocator, ids);
    defer allocator.free(bytes);
    const finder = try Finder.parse(bytes, words.len);
    for (0..words.len) |row| try std.testing.expectEqual(row, finder.find(ids, ids, row).?);
    const other: Ids = .{ .strings = .{ .offsets = &.{ 0, 2 }, .bytes = "ba" } };
    try std.testing.expectEqual(null, finder.find(ids, other, 0));
    try std.testing.expect(!(Ids{ .strings = .{ .offsets = &.{ 0, 3, 2 }, .bytes = "abc" } }).is_whole());
    try std.testing.expect(!(Ids{ .strings = .{ .offsets = &.{ 0, 4 }, .bytes = "abc" } }).is_whole());
}
