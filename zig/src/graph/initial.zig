//! A graph begun with lists of a former one: most vertices stayed, some are gone, some are new. A list that leads to a
//! vertex that is gone gets that vertex's nearest neighbors instead, and is pruned as if they had been offered; then the
//! new vertices are inserted as ever. Over ten turnovers of a tenth each, at random and cluster by cluster, such a graph
//! finds what a fresh one finds, for a quarter of the work (docs/decisions).
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");

const types = @import("types.zig");
const workers = @import("workers.zig");
const prune = @import("prune.zig");
const search = @import("search.zig");
const connectivity = @import("connect.zig");
const Candidate = search.Candidate;
const Graph = types.Graph;

/// Neighbors of one that is gone that may take its place, nearest first.
const heirs_max = 8;
/// Vertices that a thread takes at a time.
const batch = 64;
const sample_max = 1024;

pub const InitialGraph = struct {
    /// All vertices of the graph to be. Those that stayed have their lists, in which a neighbor that is gone is its
    /// place in `gone` with `gone_mark`; a vertex with an empty list is new.
    graph: Graph,
    /// The lists of those that are gone, written alike.
    removed: Graph,

    pub const removed_mark = prune.mark;

    pub fn init(allocator: std.mem.Allocator, n: u32, removed: u32, degree_max: u32) error{OutOfMemory}!InitialGraph {
        var graph = try Graph.empty(allocator, n, degree_max);
        errdefer graph.deinit(allocator);
        return .{ .graph = graph, .removed = try Graph.empty(allocator, removed, degree_max) };
    }

    pub fn deinit(self: *InitialGraph, allocator: std.mem.Allocator) void {
        self.graph.deinit(allocator);
        self.removed.deinit(allocator);
        self.* = undefined;
    }

    /// From now on the caller's to free.
    pub fn take_graph(self: *InitialGraph) Graph {
        const taken = self.graph;
        self.graph = .{ .n = 0, .degree_max = taken.degree_max, .neighbors = &.{}, .degrees = &.{}, .entry = 0 };
        return taken;
    }
};

/// The start of searches of a begun graph: near the middle, and a vertex that leads somewhere.
pub fn entry(comptime Distances: type, distances: *const Distances, graph: *const Graph, seed: u64) u32 {
    const middle = connectivity.medoid(Distances, distances, graph.n, seed);
    if (graph.degrees[middle] > 0) return middle;
    var nearest = middle;
    var nearest_distance = std.math.inf(f32);
    var seen: u32 = 0;
    const stride = @max(1, graph.n / (4 * sample_max));
    var vertex: u32 = 0;
    while (vertex < graph.n and seen < sample_max) : (vertex += stride) {
        if (graph.degrees[vertex] == 0) continue;
        seen += 1;
        const distance = distances.distance(middle, vertex);
        if (distance >= nearest_distance) continue;
        nearest = vertex;
        nearest_distance = distance;
    }
    if (seen > 0) return nearest;
    // All that stayed lie between the steps.
    for (graph.degrees, 0..) |degree, i| if (degree > 0) return @intCast(i);
    return middle;
}

/// Candidates of a new vertex: fewer than in a fresh graph, since many others are linked already. With three fifths a merge of
/// 20,000 and 20,000 descriptors links in three quarters of the time and finds 0.002 less with a list of 40, of fewer distances.
pub fn list_size(full: u32) u32 {
    return @max(@min(full, list_size_least), full * 3 / 5);
}

const list_size_least = 32;
const stayed_starts = 128;
const new_starts = 64;
pub const starts_max = stayed_starts + new_starts;

/// Starts of the search for the place of a new vertex: the entry, and at vertices that lie evenly among those that stayed
/// and among the new ones so far. A fresh graph grows in all places at once, so one entry leads everywhere. Here lists are
/// full, and hardly one of them takes up a vertex far from all others: who comes next to such a place would not find it.
pub fn starts(order: []const u32, stayed: u32, inserted: u32, out: *[starts_max]u32) []const u32 {
    const old = @min(stayed, stayed_starts);
    for (out[0..old], 0..) |*start, i| start.* = order[i * @as(usize, stayed) / old];
    const came = @min(inserted, @as(u32, @intCast(order.len))) - stayed;
    const new = @min(came, new_starts);
    for (out[old..][0..new], 0..) |*start, i| start.* = order[stayed + i * @as(usize, came) / new];
    return out[0 .. old + new];
}

/// Says to an insertion that those with lists are in the graph already.
pub const Stayed = struct {
    /// The entry is one of them, if any is, and stays first.
    pub fn restore(_: *Stayed, insertion: *types.Insertion) error{OutOfMemory}!void {
        const degrees = insertion.graph.degrees;
        const order = insertion.order;
        var stayed: u32 = 0;
        for (degrees) |degree| stayed += @intFromBool(degree > 0);
        var behind: u32 = stayed;
        for (order[0..stayed]) |*vertex| {
            if (degrees[vertex.*] > 0) continue;
            while (degrees[order[behind]] == 0) behind += 1;
            std.mem.swap(u32, vertex, &order[behind]);
        }
        insertion.inserted = stayed;
    }

    pub fn due(_: *Stayed) bool {
        return false;
    }

    pub fn save(_: *Stayed, _: *const types.Insertion) error{NotKept}!void {}
};

/// Mends the lists that lead to vertices that are gone. No list depends on another, so the result depends on nothing
/// but the distances.
pub fn mend(comptime Distances: type, distances: *const Distances, initial: *InitialGraph, options: types.BuildOptions) types.Error!void {
    var mender: Mender(Distances) = .{ .distances = distances, .graph = &initial.graph, .removed = &initial.removed, .options = options };
    try workers.run(.of(options), &mender, Mender(Distances).mend_many);
    if (mender.out_of_memory.load(.monotonic)) return error.OutOfMemory;
    if (mender.stopped()) return error.Canceled;
}

fn Mender(comptime Distances: type) type {
    return struct {
        const Self = @This();

        distances: *const Distances,
        graph: *Graph,
        removed: *const Graph,
        options: types.BuildOptions,
        cursor: std.atomic.Value(u32) = .init(0),
        stop_requested: std.atomic.Value(bool) = .init(false),
        out_of_memory: std.atomic.Value(bool) = .init(false),

        pub fn stop(self: *Self) void {
            self.stop_requested.store(true, .monotonic);
        }

        fn stopped(self: *Self) bool {
            if (self.options.cancel) |cancel| if (cancel.load(.monotonic)) return true;
            return self.stop_requested.load(.monotonic);
        }

        fn mend_many(self: *Self, _: u32) void {
            var arena = std.heap.ArenaAllocator.init(std.heap.page_allocator);
            defer arena.deinit();
            var tools = Tools(Distances).init(arena.allocator(), self.distances, self.graph.degree_max) catch {
                self.out_of_memory.store(true, .monotonic);
                return self.stop();
            };
            while (!self.stopped()) {
                const first = self.cursor.fetchAdd(batch, .monotonic);
                if (first >= self.graph.n) return;
                for (first..@min(first + batch, self.graph.n)) |vertex| self.mend_one(&tools, @intCast(vertex));
            }
        }

        fn mend_one(self: *Self, tools: *Tools(Distances), vertex: u32) void {
            const degree = self.graph.degree_max;
            const row = self.graph.row(vertex);
            var kept: u32 = 0;
            var removed: u32 = 0;
            for (self.graph.list(vertex)) |neighbor| {
                if (neighbor & InitialGraph.removed_mark != 0) {
                    tools.removed[removed] = neighbor & ~InitialGraph.removed_mark;
                    removed += 1;
                } else {
                    tools.ids[kept] = neighbor;
                    kept += 1;
                }
            }
            if (removed == 0) return;
            tools.origin.set(self.distances, vertex);
            var count = kept;
            for (tools.removed[0..removed]) |one| {
                var heirs: u32 = 0;
                for (self.removed.list(one)) |neighbor| {
                    if (neighbor & InitialGraph.removed_mark != 0 or neighbor == vertex) continue;
                    tools.heirs[heirs] = neighbor;
                    heirs += 1;
                }
                tools.origin.measure(self.distances, tools.heirs[0..heirs], tools.distances[0..heirs]);
                const members = tools.members[0..heirs];
                for (members, tools.heirs[0..heirs], tools.distances[0..heirs]) |*member, id, distance| member.* = .init(distance, id);
                std.sort.insertion(Candidate, members, {}, Candidate.less);
                for (members[0..@min(heirs, heirs_max)]) |member| {
                    if (std.mem.indexOfScalar(u32, tools.ids[0..count], member.id) != null) continue;
                    tools.ids[count] = member.id;
                    count += 1;
                }
            }
            if (count == 0) {
                // All that it knew is gone: it is inserted as if it were new.
                self.graph.degrees[vertex] = 0;
                return;
            }
            tools.origin.measure(self.distances, tools.ids[0..count], tools.distances[0..count]);
            const members = tools.members[0..count];
            for (members, tools.ids[0..count], tools.distances[0..count], 0..) |*member, id, distance, i| {
                member.* = .init(distance, id);
                member.expanded = i < kept; // these were pruned together
            }
            std.sort.pdq(Candidate, members, {}, Candidate.less);
            const left = tools.pruner.prune(self.distances, members, degree, @max(degree / 4, 1), self.options.alpha);
            for (members[0..left], row[0..left]) |member, *place| place.* = member.id;
            self.graph.degrees[vertex] = @intCast(left);
        }
    };
}

/// Buffers of one thread.
fn Tools(comptime Distances: type) type {
    return struct {
        origin: @import("types.zig").Origin(Distances),
        pruner: prune.Pruner(Distances),
        removed: []u32,
        heirs: []u32,
        ids: []u32,
        distances: []f32,
        members: []Candidate,

        /// The allocator is an arena: nothing is freed one by one.
        fn init(arena: std.mem.Allocator, distances: *const Distances, degree: u32) error{OutOfMemory}!@This() {
            const most = degree * (1 + heirs_max);
            return .{
                .origin = try .init(arena, distances),
                .pruner = try .init(arena, distances, degree),
                .removed = try arena.alloc(u32, degree),
                .heirs = try arena.alloc(u32, degree),
                .ids = try arena.alloc(u32, most),
                .distances = try arena.alloc(f32, most),
                .members = try arena.alloc(Candidate, most),
            };
        }
    };
}
