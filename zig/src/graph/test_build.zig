//! Builds over points whose neighbors are known by arithmetic or by brute force.
const std = @import("std");
const testing = std.testing;
const base = @import("base");

const graph_room = @import("graph.zig");
const Graph = graph_room.Graph;
const BuildOptions = graph_room.BuildOptions;
const Scratch = @import("search.zig").Scratch;
const Plain = @import("connect.zig").Plain;

/// Squared L2 over float rows: the oracle.
pub const FloatDistances = struct {
    n: u32,
    dim: u32,
    rows: []f32,

    pub fn init(n: u32, dim: u32) !FloatDistances {
        return .{ .n = n, .dim = dim, .rows = try testing.allocator.alloc(f32, @as(usize, n) * dim) };
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

    pub fn gaussian(n: u32, dim: u32, seed: u64) !FloatDistances {
        const self = try init(n, dim);
        var prng = base.Prng.init(seed);
        for (self.rows) |*x| x.* = prng.gaussian();
        return self;
    }
};

fn build(points: *const FloatDistances, options: BuildOptions) !Graph {
    return graph_room.build(FloatDistances, testing.allocator, points, options);
}

test "first" {
    var points = try FloatDistances.gaussian(2000, 8, 1);
    defer points.deinit();
    var graph = try build(&points, .{ .degree = 16, .list_size = 32, .threads = 2, .seed = 1 });
    defer graph.deinit(testing.allocator);
    try testing.expectEqual(points.n, try graph_room.reachable_count(testing.allocator, &graph, graph.degree_max));
    const bytes = try testing.allocator.alloc(u16, points.n);
    defer testing.allocator.free(bytes);
    @memset(bytes, 100);
    var p = try graph_room.place(FloatDistances, testing.allocator, &points, &graph, .{ .page_bytes_budget = 2000, .record_bytes = bytes });
    defer p.deinit(testing.allocator);
    const colors = try graph_room.color(FloatDistances, testing.allocator, &points, &p, try graph_room.affinity_threshold(FloatDistances, testing.allocator, &points, points.n, 1));
    defer testing.allocator.free(colors);
    try graph_room.remap(testing.allocator, &graph, &p);
    const e = try graph_room.entry_points(testing.allocator, points.n, 10, 1);
    defer testing.allocator.free(e);
    try testing.expectEqual(points.n, try graph_room.reachable_count(testing.allocator, &graph, graph.degree_max));
}
