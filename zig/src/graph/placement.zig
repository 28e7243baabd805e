//! Which vertices share a page, and in which order pages follow each other. The order becomes the ids.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");

const types = @import("types.zig");
const Graph = types.Graph;
const Candidate = @import("search.zig").Candidate;
const CandidateList = @import("search.zig").CandidateList;
const VisitedSet = @import("search.zig").VisitedSet;

pub const Placement = struct {
    /// `order[new id] = old id`.
    order: []u32,
    /// First new id of every page, ascending, beginning with 0.
    page_first: []u32,

    pub fn deinit(self: *Placement, allocator: std.mem.Allocator) void {
        allocator.free(self.order);
        allocator.free(self.page_first);
        self.* = undefined;
    }

    /// New ids on a page, half open.
    pub fn page(self: *const Placement, index: usize) struct { from: u32, to: u32 } {
        const to = if (index + 1 < self.page_first.len) self.page_first[index + 1] else @as(u32, @intCast(self.order.len));
        return .{ .from = self.page_first[index], .to = to };
    }

    /// `inverse[old id] = new id`.
    pub fn inverse(self: *const Placement, allocator: std.mem.Allocator) error{OutOfMemory}![]u32 {
        const new_ids = try allocator.alloc(u32, self.order.len);
        for (self.order, 0..) |old, new| new_ids[old] = @intCast(new);
        return new_ids;
    }
};

/// Fills page after page: around a seed, with the unplaced vertex nearest to the page so far, found by a walk over the
/// graph from the seed. The next seed is what was found next to the page and did not fit.
pub fn place(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, graph: *const Graph, options: types.PlaceOptions) types.Error!Placement {
    assert(options.record_bytes.len == graph.n);
    var order = try std.ArrayList(u32).initCapacity(allocator, graph.n);
    errdefer order.deinit(allocator);
    var page_first: std.ArrayList(u32) = .empty;
    errdefer page_first.deinit(allocator);

    var filler = try Filler(Distances).init(allocator, distances, graph, options);
    defer filler.deinit(allocator);
    while (filler.next_seed()) |seed| {
        if (options.cancel) |cancel| if (cancel.load(.monotonic)) return error.Canceled;
        const from: u32 = @intCast(order.items.len);
        try page_first.append(allocator, from);
        filler.fill(seed, &order);
        if (options.progress) |progress| _ = progress.fetchAdd(order.items.len - from, .monotonic);
    }
    assert(order.items.len == graph.n);
    const starts = try page_first.toOwnedSlice(allocator);
    return .{ .order = try order.toOwnedSlice(allocator), .page_first = starts };
}

const walk_size = 96;
const pool_size = 160;
const expansions_max = 400;
const waiting_max = 1 << 14;

fn Filler(comptime Distances: type) type {
    return struct {
        const Self = @This();

        distances: *const Distances,
        graph: *const Graph,
        options: types.PlaceOptions,
        placed: base.BitSet,
        walk: CandidateList,
        pool: CandidateList,
        visited: VisitedSet,
        ids: []u32,
        out: []f32,
        sums: []f32,
        /// Unplaced vertices beside earlier pages, latest last; the oldest are forgotten.
        waiting: []u32,
        waiting_end: u64 = 0,
        waiting_len: u32 = 0,
        scan: u32 = 0,

        fn init(allocator: std.mem.Allocator, distances: *const Distances, graph: *const Graph, options: types.PlaceOptions) error{OutOfMemory}!Self {
            var arena_free = true;
            _ = &arena_free;
            var placed = try base.BitSet.init(allocator, graph.n);
            errdefer placed.deinit(allocator);
            const walk = try allocator.alloc(Candidate, walk_size);
            errdefer allocator.free(walk);
            const pool = try allocator.alloc(Candidate, pool_size);
            errdefer allocator.free(pool);
            const slots = try allocator.alloc(u32, std.math.ceilPowerOfTwoAssert(usize, 2 * expansions_max * @as(usize, graph.degree_max)));
            errdefer allocator.free(slots);
            const longest = @max(graph.degree_max, pool_size) + 1;
            const ids = try allocator.alloc(u32, longest);
            errdefer allocator.free(ids);
            const out = try allocator.alloc(f32, longest);
            errdefer allocator.free(out);
            const sums = try allocator.alloc(f32, pool_size);
            errdefer allocator.free(sums);
            const waiting = try allocator.alloc(u32, waiting_max);
            return .{ .distances = distances, .graph = graph, .options = options, .placed = placed, .walk = .{ .items = walk }, .pool = .{ .items = pool }, .visited = .{ .slots = slots }, .ids = ids, .out = out, .sums = sums, .waiting = waiting };
        }

        fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            self.placed.deinit(allocator);
            allocator.free(self.walk.items);
            allocator.free(self.pool.items);
            allocator.free(self.visited.slots);
            allocator.free(self.ids);
            allocator.free(self.out);
            allocator.free(self.sums);
            allocator.free(self.waiting);
        }

        fn next_seed(self: *Self) ?u32 {
            if (self.graph.n == 0) return null;
            if (self.scan == 0 and !self.placed.contains(self.graph.entry)) return self.graph.entry;
            while (self.waiting_len > 0) {
                self.waiting_end -= 1;
                self.waiting_len -= 1;
                const vertex = self.waiting[@intCast(self.waiting_end % waiting_max)];
                if (!self.placed.contains(vertex)) return vertex;
            }
            while (self.scan < self.graph.n) : (self.scan += 1) {
                if (!self.placed.contains(self.scan)) return self.scan;
            }
            return null;
        }

        fn keep_waiting(self: *Self, vertex: u32) void {
            self.waiting[@intCast(self.waiting_end % waiting_max)] = vertex;
            self.waiting_end += 1;
            self.waiting_len = @min(self.waiting_len + 1, waiting_max);
        }

        fn fill(self: *Self, seed: u32, order: *std.ArrayList(u32)) void {
            self.gather(seed);
            self.placed.insert(seed);
            order.appendAssumeCapacity(seed);
            var bytes: u32 = self.options.record_bytes[seed];
            var members: f32 = 1;
            for (self.pool.slice(), self.sums[0..self.pool.len]) |candidate, *sum| sum.* = candidate.distance();
            while (self.pool.len > 0) {
                const nearest = std.mem.indexOfMin(f32, self.sums[0..self.pool.len]);
                const vertex: u32 = self.pool.items[nearest].id;
                if (bytes + self.options.record_bytes[vertex] > self.options.page_bytes_budget) break;
                bytes += self.options.record_bytes[vertex];
                self.placed.insert(vertex);
                order.appendAssumeCapacity(vertex);
                members += 1;
                self.drop(nearest);
                const rest = self.pool.slice();
                for (rest, self.ids[0..rest.len]) |candidate, *id| id.* = candidate.id;
                self.distances.distances(vertex, self.ids[0..rest.len], self.out[0..rest.len]);
                for (self.sums[0..rest.len], self.out[0..rest.len]) |*sum, d| sum.* += d;
            }
            // The nearest is pushed last and becomes the next seed.
            while (self.pool.len > 0) {
                const farthest = std.mem.indexOfMax(f32, self.sums[0..self.pool.len]);
                self.keep_waiting(self.pool.items[farthest].id);
                self.drop(farthest);
            }
        }

        fn drop(self: *Self, at: usize) void {
            self.pool.len -= 1;
            self.pool.items[at] = self.pool.items[self.pool.len];
            self.sums[at] = self.sums[self.pool.len];
        }

        /// Fills the pool with the unplaced vertices nearest to the seed that a walk from it meets.
        fn gather(self: *Self, seed: u32) void {
            self.walk.len = 0;
            self.pool.len = 0;
            self.visited.clear();
            _ = self.visited.insert(seed);
            _ = self.meet(seed, self.graph.list(seed));
            var cursor: u32 = 0;
            var expansions: u32 = 0;
            while (cursor < self.walk.len and expansions < expansions_max) {
                const current = &self.walk.items[cursor];
                if (current.expanded) {
                    cursor += 1;
                    continue;
                }
                current.expanded = true;
                expansions += 1;
                cursor = @min(cursor + 1, self.meet(seed, self.graph.list(current.id)));
            }
        }

        fn meet(self: *Self, seed: u32, neighbors: []const u32) u32 {
            var fresh: u32 = 0;
            for (neighbors) |neighbor| {
                self.ids[fresh] = neighbor;
                fresh += @intFromBool(self.visited.insert(neighbor));
            }
            self.distances.distances(seed, self.ids[0..fresh], self.out[0..fresh]);
            var lowest: u32 = std.math.maxInt(u32);
            for (self.ids[0..fresh], self.out[0..fresh]) |id, d| {
                if (id == seed) continue;
                if (self.walk.insert(.init(d, id))) |position| lowest = @min(lowest, position);
                if (!self.placed.contains(id)) _ = self.pool.insert(.init(d, id));
            }
            return lowest;
        }
    };
}

/// Rewrites the graph in placement ids, in place.
pub fn remap(allocator: std.mem.Allocator, graph: *Graph, placement: *const Placement) error{OutOfMemory}!void {
    assert(placement.order.len == graph.n);
    if (graph.n == 0) return;
    const new_ids = try placement.inverse(allocator);
    defer allocator.free(new_ids);
    const held = try allocator.alloc(u32, graph.degree_max);
    defer allocator.free(held);
    var moved = try base.BitSet.init(allocator, graph.n);
    defer moved.deinit(allocator);

    for (0..graph.n) |v| for (graph.list(@intCast(v))) |*neighbor| {
        neighbor.* = new_ids[neighbor.*];
    };
    // Rows move along the cycles of the permutation, so no second copy of the graph is needed.
    for (0..graph.n) |start| {
        if (moved.contains(start)) continue;
        @memcpy(held, graph.row(@intCast(start)));
        const held_degree = graph.degrees[start];
        var to: u32 = @intCast(start);
        while (true) {
            moved.insert(to);
            const from = placement.order[to];
            if (from == start) break;
            @memcpy(graph.row(to), graph.row(from));
            graph.degrees[to] = graph.degrees[from];
            to = from;
        }
        @memcpy(graph.row(to), held);
        graph.degrees[to] = held_degree;
    }
    graph.entry = new_ids[graph.entry];
}
