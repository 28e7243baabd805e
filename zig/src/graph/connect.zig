//! Entry points, and every vertex reachable from them: pruning may leave a vertex without an edge that leads to it.
const std = @import("std");
const base = @import("base");
const types = @import("types.zig");
const Candidate = @import("search.zig").Candidate;
const Scratch = @import("search.zig").Scratch;
const Graph = types.Graph;

const list_size = 64;

/// Adds edges until every vertex can be reached from the entry, in the order of ids. An unreachable vertex is found a
/// parent near it: a vertex with a free place, or else one that gives up its last neighbor, to which the newly attached
/// vertex then leads instead.
pub fn connect(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, graph: *Graph, cancel: ?*const std.atomic.Value(bool)) types.Error!void {
    if (graph.n == 0) return;
    var reached = try base.BitSet.init(allocator, graph.n);
    defer reached.deinit(allocator);
    const stack = try base.alloc_untouched(allocator, u32, graph.n);
    defer base.free_untouched(allocator, stack);
    try spread(graph, &reached, stack, graph.entry, graph.degree_max, cancel);
    if (reached.count() == graph.n) return;

    var scratch = try Scratch(Distances).init(allocator, distances, list_size, graph.degree_max);
    defer scratch.deinit(allocator);
    for (0..graph.n) |v| {
        const vertex: u32 = @intCast(v);
        if (reached.contains(vertex)) continue;
        if (cancel) |flag| if (flag.load(.monotonic)) return error.Canceled;
        scratch.begin(distances, vertex, &.{graph.entry});
        scratch.walk(distances, Plain{ .graph = graph }, &.{});
        attach(Distances, distances, graph, vertex, scratch.list.slice());
        try spread(graph, &reached, stack, vertex, graph.degree_max, cancel);
    }
}

/// Vertices that can be reached from the entry over the first `links` neighbors of each.
pub fn reachable_count(allocator: std.mem.Allocator, graph: *const Graph, links: u32) error{OutOfMemory}!u32 {
    if (graph.n == 0) return 0;
    var reached = try base.BitSet.init(allocator, graph.n);
    defer reached.deinit(allocator);
    const stack = try base.alloc_untouched(allocator, u32, graph.n);
    defer base.free_untouched(allocator, stack);
    spread(graph, &reached, stack, graph.entry, links, null) catch unreachable; // only a cancel fails
    return @intCast(reached.count());
}

/// Neighbor lists of a graph that does not change.
pub const Plain = struct {
    graph: *const Graph,

    pub fn copy(self: Plain, vertex: u32, _: []u32) []const u32 {
        return self.graph.list(vertex);
    }

    pub inline fn hint(self: Plain, vertex: u32) void {
        const row = self.graph.row(vertex);
        @prefetch(&self.graph.degrees[vertex], .{});
        var at: usize = 0;
        while (at < row.len) : (at += 16) @prefetch(&row[at], .{});
    }
};

/// Marks all that can be reached from `start`. Each vertex is pushed once in its life, so a stack of n is enough.
fn spread(graph: *const Graph, reached: *base.BitSet, stack: []u32, start: u32, links: u32, cancel: ?*const std.atomic.Value(bool)) error{Canceled}!void {
    reached.insert(start);
    stack[0] = start;
    var height: usize = 1;
    var steps: u32 = 0;
    while (height > 0) {
        steps +%= 1;
        if (steps % 4096 == 0) if (cancel) |flag| if (flag.load(.monotonic)) return error.Canceled;
        height -= 1;
        const list = graph.list(stack[height]);
        for (list[0..@min(list.len, links)]) |neighbor| {
            if (!reached.insert_new(neighbor)) continue;
            stack[height] = neighbor;
            height += 1;
        }
    }
}

/// `near`: reachable vertices, nearest first; at least one.
fn attach(comptime Distances: type, distances: *const Distances, graph: *Graph, vertex: u32, near: []const Candidate) void {
    for (near) |candidate| {
        if (prepend(graph, candidate.id, vertex)) return;
    }
    // Copies of one vector fill each other's lists: going down along copies, at random, ends at one with a free place.
    var parent: u32 = near[0].id;
    if (types.is_copy(Distances, distances, near[0].id, near[0].distance())) {
        var prng = base.Prng.init(vertex);
        for (0..64) |_| {
            const list = graph.list(parent);
            const below = list[@intCast(prng.below(list.len))];
            if (!types.is_copy(Distances, distances, below, distances.distance(vertex, below))) continue;
            parent = below;
            if (prepend(graph, parent, vertex)) return;
        }
    }
    const row = graph.list(parent);
    const given_up = row[row.len - 1];
    graph.degrees[parent] -= 1;
    if (!prepend(graph, parent, vertex)) unreachable;
    if (std.mem.indexOfScalar(u32, graph.list(vertex), given_up) != null) return;
    if (graph.degrees[vertex] == graph.degree_max) graph.degrees[vertex] -= 1;
    if (!prepend(graph, vertex, given_up)) unreachable;
}

/// Puts the newcomer first, so that it is among the links kept in memory; false if the list is full.
fn prepend(graph: *Graph, vertex: u32, newcomer: u32) bool {
    const held = graph.degrees[vertex];
    if (held == graph.degree_max) return false;
    graph.degrees[vertex] = held + 1;
    const list = graph.list(vertex);
    std.mem.copyBackwards(u32, list[1..], list[0..held]);
    list[0] = newcomer;
    return true;
}

// ---- entry points ----

const sample_max = 1024;

/// Of a seeded sample the vertex with the smallest sum of distances to the sample.
pub fn medoid(comptime Distances: type, distances: *const Distances, n: u32, seed: u64) u32 {
    var prng = base.Prng.init(seed).split(0x6d65_646f);
    var sample: [sample_max]u32 = undefined;
    var out: [sample_max]f32 = undefined;
    const count = @min(n, sample_max);
    for (sample[0..count], 0..) |*id, i| id.* = if (n <= sample_max) @intCast(i) else @intCast(prng.below(n));
    var best = sample[0];
    var best_sum = std.math.inf(f64);
    for (sample[0..count]) |id| {
        distances.distances(id, sample[0..count], out[0..count]);
        var sum: f64 = 0;
        for (out[0..count]) |d| sum += d;
        if (sum < best_sum) {
            best_sum = sum;
            best = id;
        }
    }
    return best;
}

/// `count` distinct vertices (all of them if there are fewer), drawn evenly: one at random from each of `count` equal
/// ranges of ids, ascending. In placement order ranges of ids are regions of space, so the draw covers it.
pub fn entry_points(allocator: std.mem.Allocator, n: u32, count: u32, seed: u64) error{OutOfMemory}![]u32 {
    const wanted = @min(n, count);
    const points = try allocator.alloc(u32, wanted);
    var prng = base.Prng.init(seed).split(0x656e_7472);
    for (points, 0..) |*point, i| {
        const from = @as(u64, n) * i / wanted;
        const to = @as(u64, n) * (i + 1) / wanted;
        point.* = @intCast(from + prng.below(to - from));
    }
    return points;
}

/// As many entry points as a search can afford to look at: 2,000 at a million vertices, growing with the square root.
pub fn entry_count(n: u32) u32 {
    return @min(n, std.math.sqrt(@as(u64, n) * 4));
}
