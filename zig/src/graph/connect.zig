//! Every vertex reachable from the entry: pruning may leave a vertex without an edge that leads to it.
const std = @import("std");
const base = @import("base");

const types = @import("types.zig");
const Graph = types.Graph;
const Candidate = @import("search.zig").Candidate;
const Scratch = @import("search.zig").Scratch;

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

/// Neighbor lists of a graph that nobody changes.
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
