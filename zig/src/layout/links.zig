//! The links kept in memory: for every vertex the first neighbors that pruning gave it, as an adjacency list
//! (adjacency.zig) of whole bytes. The same bytes stand in links.bin and in memory:
//!
//!   groups    one u64 for every `group_size` vertices, and one more: where their lists begin in the heap
//!   lengths   one u8 a vertex, padded to whole groups: bytes of its list
//!   heap      the lists, then `adjacency.over_read_bytes` zeros
//!
//! so finding a list is one load of the group and a masked sum of at most 15 lengths.
//!
//! links.bin has a fourth part, which never stands in memory whole:
//!
//!   tiers     `tier_bytes` a vertex: 3 bits a link, in the order of its list: the tier of the place that the link
//!             took when the list was pruned. An open that keeps fewer links keeps the lower tiers.
const std = @import("std");
const builtin = @import("builtin");
const adjacency = @import("adjacency.zig");
const assert = std.debug.assert;

pub const group_size = 16;
pub const list_bytes_max = 255;

pub fn group_count(n: u32) u32 {
    return (n + group_size - 1) / group_size;
}

/// Links of the tiers up to t: an open keeps one of these numbers, or all.
pub const tier_bounds = [_]u32{ 8, 10, 12, 14, 16, 20, 24 };
pub const tier_bits = 3;

comptime {
    assert(tier_bounds.len < 1 << tier_bits);
}

/// The tier of the place that a link took in its list, 0 the first.
pub fn tier_of(place: usize) u3 {
    for (tier_bounds, 0..) |bound, tier| {
        if (place < bound) return @intCast(tier);
    }
    return tier_bounds.len;
}

/// Tiers that may stay when `kept` links shall: those below the answer.
pub fn tiers_within(kept: u32) u4 {
    var tiers: u4 = 0;
    for (tier_bounds) |bound| {
        if (bound <= kept) tiers += 1;
    }
    return tiers;
}

pub fn tier_bytes(links_built: u32) u32 {
    return (links_built * tier_bits + 7) / 8;
}

pub fn put_tier(tiers: []u8, link: usize, tier: u3) void {
    for (0..tier_bits) |bit| {
        const at = link * tier_bits + bit;
        tiers[at / 8] |= @as(u8, (tier >> @intCast(bit)) & 1) << @intCast(at % 8);
    }
}

pub fn get_tier(tiers: []const u8, link: usize) u3 {
    var tier: u3 = 0;
    for (0..tier_bits) |bit| {
        const at = link * tier_bits + bit;
        tier |= @as(u3, @intCast((tiers[at / 8] >> @intCast(at % 8)) & 1)) << @intCast(bit);
    }
    return tier;
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
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const group = vertex / group_size;
        const place = vertex % group_size;
        const V = @Vector(group_size, u8);
        const lengths: V = self.lengths[group * group_size ..][0..group_size].*;
        const before = std.simd.iota(u8, group_size) < @as(V, @splat(@intCast(place)));
        const sum = @reduce(.Add, @as(@Vector(group_size, u16), @select(u8, before, lengths, @as(V, @splat(0)))));
        return .{ .bytes = self.heap.ptr + self.groups[group] + sum, .length = self.lengths[vertex] };
    }

    /// Asks for what `decode_list` will touch; `prefetch` should have come before.
    pub inline fn prefetch_list(self: *const Links, vertex: u32) List {
        const encoded = self.list(vertex);
        @prefetch(encoded.bytes, .{});
        @prefetch(encoded.bytes + encoded.length, .{});
        return encoded;
    }

    pub inline fn decode(self: *const Links, vertex: u32, out: []u32) adjacency.Codec.DecodeError![]u32 {
        return self.decode_list(vertex, self.list(vertex), out);
    }

    pub inline fn decode_list(self: *const Links, vertex: u32, encoded: List, out: []u32) adjacency.Codec.DecodeError![]u32 {
        return self.codec.decode(vertex, encoded.bytes, encoded.length, self.n, out);
    }

    /// Asks for what `list` will touch.
    pub inline fn prefetch(self: *const Links, vertex: u32) void {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
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

test "tiers of places, and of links by bits" {
    try std.testing.expectEqual(0, tier_of(7));
    try std.testing.expectEqual(1, tier_of(8));
    try std.testing.expectEqual(7, tier_of(24));
    try std.testing.expectEqual(7, tier_of(200));
    try std.testing.expectEqual(0, tiers_within(7));
    try std.testing.expectEqual(5, tiers_within(17));
    try std.testing.expectEqual(7, tiers_within(32));
    var bytes: [12]u8 = @splat(0);
    try std.testing.expectEqual(12, tier_bytes(32));
    for (0..32) |link| put_tier(&bytes, link, @intCast(link * 5 % 8));
    for (0..32) |link| try std.testing.expectEqual(link * 5 % 8, get_tier(&bytes, link));
}
