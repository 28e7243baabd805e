//! The links kept in memory: for every vertex the first neighbors that pruning gave it, as an adjacency list
//! (adjacency.zig) of whole bytes. The same bytes stand in links.bin and in memory:
//!
//!   groups    one u64 for every `group_size` vertices, and one more: where their lists begin in the heap
//!   lengths   one u8 a vertex, padded to whole groups: bytes of its list
//!   heap      the lists, then `adjacency.over_read_bytes` zeros
//!
//! so finding a list is one load of the group and a masked sum of at most 15 lengths.
const std = @import("std");
const adjacency = @import("adjacency.zig");
const assert = std.debug.assert;

pub const group_size = 16;
pub const list_bytes_max = 255;

pub fn group_count(n: u32) u32 {
    return (n + group_size - 1) / group_size;
}

pub const Links = struct {
    n: u32,
    codec: adjacency.Codec,
    groups: []const u64,
    lengths: []const u8,
    heap: []const u8,

    /// Checks that every list lies inside the heap; the lists themselves are checked as they are decoded.
    pub fn verify(self: *const Links) error{BadLinks}!void {
        if (self.groups.len != group_count(self.n) + 1) return error.BadLinks;
        if (self.lengths.len != group_count(self.n) * group_size) return error.BadLinks;
        for (self.groups[0 .. self.groups.len - 1], self.groups[1..], 0..) |begin, end, group| {
            var bytes: u64 = 0;
            for (self.lengths[group * group_size ..][0..group_size]) |length| bytes += length;
            if (end < begin or end - begin != bytes) return error.BadLinks;
        }
        const heap_bytes = self.groups[self.groups.len - 1];
        if (self.groups[0] != 0 or self.heap.len != heap_bytes + adjacency.over_read_bytes) return error.BadLinks;
    }

    pub const List = struct { bytes: [*]const u8, length: u32 };

    pub inline fn list(self: *const Links, vertex: u32) List {
        assert(vertex < self.n);
        const group = vertex / group_size;
        const place = vertex % group_size;
        const V = @Vector(group_size, u8);
        const lengths: V = self.lengths[group * group_size ..][0..group_size].*;
        const before = std.simd.iota(u8, group_size) < @as(V, @splat(@intCast(place)));
        const sum = @reduce(.Add, @as(@Vector(group_size, u16), @select(u8, before, lengths, @as(V, @splat(0)))));
        return .{ .bytes = self.heap.ptr + self.groups[group] + sum, .length = self.lengths[vertex] };
    }

    pub inline fn decode(self: *const Links, vertex: u32, out: []u32) adjacency.Codec.DecodeError![]u32 {
        const encoded = self.list(vertex);
        return self.codec.decode(vertex, encoded.bytes, encoded.length, self.n, out);
    }

    /// Asks for what `list` will touch.
    pub inline fn prefetch(self: *const Links, vertex: u32) void {
        const group = vertex / group_size;
        @prefetch(&self.groups[group], .{});
        @prefetch(&self.lengths[group * group_size], .{});
    }

    pub fn memory_bytes(self: *const Links) u64 {
        return self.groups.len * 8 + self.lengths.len + self.heap.len;
    }
};

test "lists are found where they were put" {
    const n = 1000;
    var prng = std.Random.DefaultPrng.init(3);
    const random = prng.random();
    var statistics: adjacency.Codec.Statistics = .{};
    var ids: [n][4]u32 = undefined;
    for (&ids, 0..) |*list, v| {
        const begin = random.uintLessThan(u32, n - 10);
        list.* = .{ begin, begin + 1, begin + 5, begin + 9 };
        statistics.count(@intCast(v), list);
    }
    var groups: [group_count(n) + 1]u64 = undefined;
    var lengths: [group_count(n) * group_size]u8 = @splat(0);
    var heap: [n * 32]u8 = @splat(0);
    const codec = adjacency.Codec.train(&statistics);
    var at: u32 = 0;
    for (&ids, 0..) |*list, v| {
        if (v % group_size == 0) groups[v / group_size] = at;
        const length = codec.encode(@intCast(v), list, heap[at..]);
        lengths[v] = @intCast(length);
        at += length;
    }
    groups[group_count(n)] = at;
    const links: Links = .{ .n = n, .codec = codec, .groups = &groups, .lengths = &lengths, .heap = heap[0 .. at + adjacency.over_read_bytes] };
    try links.verify();
    var out: [8]u32 = undefined;
    for (&ids, 0..) |*list, v| try std.testing.expectEqualSlices(u32, list, try links.decode(@intCast(v), &out));
    lengths[17] += 1;
    try std.testing.expectError(error.BadLinks, links.verify());
}
