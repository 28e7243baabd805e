//! Points and checks that the tests of this room share.
const std = @import("std");
const testing = std.testing;
const base = @import("base");

const Graph = @import("types.zig").Graph;
const Plain = @import("connect.zig").Plain;
const search = @import("search.zig");

/// Squared L2 over float rows: the oracle. Rows at and above `n` are queries: they have distances and are not built.
pub const FloatDistances = struct {
    n: u32,
    dim: u32,
    rows: []f32,

    pub fn init(n: u32, queries: u32, dim: u32) !FloatDistances {
        return .{ .n = n, .dim = dim, .rows = try testing.allocator.alloc(f32, @as(usize, n + queries) * dim) };
    }

    pub fn deinit(self: *FloatDistances) void {
        testing.allocator.free(self.rows);
    }

    pub fn row(self: *const FloatDistances, v: u32) []f32 {
        return self.rows[@as(usize, v) * self.dim ..][0..self.dim];
    }

    pub fn distance(self: *const FloatDistances, a: u32, b: u32) f32 {
        var sum: f32 = 0;
        for (self.row(a), self.row(b)) |x, y| sum += (x - y) * (x - y);
        return sum;
    }

    pub fn distances(self: *const FloatDistances, from: u32, ids: []const u32, out: []f32) void {
        for (ids, out) |id, *d| d.* = self.distance(from, id);
    }

    pub fn gaussian(n: u32, queries: u32, dim: u32, seed: u64) !FloatDistances {
        const self = try init(n, queries, dim);
        var prng = base.Prng.init(seed);
        for (self.rows) |*x| x.* = prng.gaussian();
        return self;
    }

    /// `count` tight clusters far from each other; vertex v is in cluster v % count.
    pub fn clustered(n: u32, count: u32, dim: u32, seed: u64) !FloatDistances {
        const self = try init(n, 0, dim);
        for (0..n) |v| {
            var center = base.Prng.init(seed).split(v % count);
            var offset = base.Prng.init(seed +% 1).split(v);
            for (self.row(@intCast(v))) |*x| x.* = 100 * center.gaussian() + offset.gaussian();
        }
        return self;
    }

    pub fn identical(n: u32, dim: u32) !FloatDistances {
        const self = try init(n, 0, dim);
        @memset(self.rows, 0.25);
        return self;
    }

    /// A square grid with sides of `side` points one apart.
    pub fn grid(side: u32) !FloatDistances {
        const self = try init(side * side, 0, 2);
        for (0..side * side) |v| {
            self.row(@intCast(v))[0] = @floatFromInt(v % side);
            self.row(@intCast(v))[1] = @floatFromInt(v / side);
        }
        return self;
    }

    /// The `k` nearest of the first `n` rows to row `from`, itself left out, by comparing all; equal distances by id.
    pub fn nearest(self: *const FloatDistances, from: u32, out: []u32) void {
        var best: [64]f32 = undefined;
        var len: usize = 0;
        for (0..self.n) |v| {
            if (v == from) continue;
            const d = self.distance(from, @intCast(v));
            if (len == out.len and d >= best[len - 1]) continue;
            if (len < out.len) len += 1;
            var at = len - 1;
            while (at > 0 and best[at - 1] > d) : (at -= 1) {
                best[at] = best[at - 1];
                out[at] = out[at - 1];
            }
            best[at] = d;
            out[at] = @intCast(v);
        }
    }
};

/// Properties of every graph: ids in range, no vertex its own neighbor, no neighbor twice, all within the degree.
pub fn expect_sound(graph: *const Graph) !void {
    try testing.expectEqual(@as(usize, graph.n) * graph.degree_max, graph.neighbors.len);
    try testing.expectEqual(graph.n, graph.degrees.len);
    for (0..graph.n) |v| {
        try testing.expect(graph.degrees[v] <= graph.degree_max);
        const list = graph.list(@intCast(v));
        for (list, 0..) |neighbor, i| {
            try testing.expect(neighbor < graph.n);
            try testing.expect(neighbor != v);
            try testing.expectEqual(null, std.mem.indexOfScalar(u32, list[0..i], neighbor));
        }
    }
}

pub fn expect_equal_graphs(a: *const Graph, b: *const Graph) !void {
    try testing.expectEqual(a.entry, b.entry);
    try testing.expectEqualSlices(u16, a.degrees, b.degrees);
    for (0..a.n) |v| try testing.expectEqualSlices(u32, a.list(@intCast(v)), b.list(@intCast(v)));
}

/// Recall of the ten nearest of rows n and above, by walks from the graph's entry.
pub fn recall_at_10(points: *const FloatDistances, graph: *const Graph, list_size: u32) !f64 {
    return recall_from(points, graph, list_size, &.{graph.entry});
}

/// The same by walks from these vertices.
pub fn recall_from(points: *const FloatDistances, graph: *const Graph, list_size: u32, starts: []const u32) !f64 {
    var scratch = try search.Scratch(FloatDistances).init(testing.allocator, points, list_size, graph.degree_max);
    defer scratch.deinit(testing.allocator);
    const queries: u32 = @intCast(points.rows.len / points.dim - points.n);
    var found: u32 = 0;
    for (points.n..points.n + queries) |query| {
        var truth: [10]u32 = undefined;
        points.nearest(@intCast(query), &truth);
        scratch.begin(points, @intCast(query), starts);
        scratch.walk(points, Plain{ .graph = graph }, &.{});
        for (scratch.list.slice()[0..10]) |candidate| {
            found += @intFromBool(std.mem.indexOfScalar(u32, &truth, candidate.id) != null);
        }
    }
    return @as(f64, @floatFromInt(found)) / @as(f64, @floatFromInt(queries * 10));
}
