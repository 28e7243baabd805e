//! Vamana construction: vertices are inserted one after another in a random order, by as many threads as wanted. A
//! vertex searches the graph for its place, keeps what pruning leaves of all that the search expanded, and offers
//! itself to those neighbors in return.
//!
//! A neighbor list is read and written under its vertex's lock, and read by copying it, so no list is ever seen torn.
//! While building, a list is a sorted, pruned head and a tail of newcomers that carry `mark`; a newcomer to a full list
//! triggers a pruning in which only pairs with a marked member are compared. A full list without newcomers refuses, by
//! one comparison with its radius, whatever is farther than its last member.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const quant = @import("quant");

const types = @import("types.zig");
const workers = @import("workers.zig");
const connectivity = @import("connect.zig");
const Candidate = @import("search.zig").Candidate;
const Scratch = @import("search.zig").Scratch;
const prune = @import("prune.zig");
const Pruner = prune.Pruner;
const initial_room = @import("initial.zig");
const InitialGraph = initial_room.InitialGraph;
const Graph = types.Graph;
const Insertion = types.Insertion;
const BuildOptions = types.BuildOptions;

/// Vertices inserted by one thread before others join: a tiny graph gives threads nothing to do but wait.
const alone_max = 512;
/// Vertices that a thread takes at a time.
const batch = 16;

/// Builds the graph over all vertices of `distances`. With one thread the result depends on the distances, the options
/// and nothing else. Every vertex can be reached from the entry.
pub fn build(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, options: BuildOptions) types.Error!Graph {
    var none: KeepsNothing = .{};
    return build_kept(Distances, allocator, distances, options, &none) catch |err| switch (err) {
        error.NotKept => unreachable, // nothing is kept
        else => |other| other,
    };
}

/// As `build`, from what a former graph knew of vertices that stayed (initial.zig): their lists are mended where neighbors
/// are gone, and only the other vertices are inserted. It takes `begun.graph`.
pub fn build_from(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, options: BuildOptions, initial: *InitialGraph) types.Error!Graph {
    try initial_room.mend(Distances, distances, initial, options);
    var own = options;
    own.entry = options.entry orelse initial_room.entry(Distances, distances, &initial.graph, options.seed);
    own.list_size = initial_room.list_size(options.list_size);
    var stayed: initial_room.Stayed = .{};
    return build_over(Distances, allocator, distances, own, initial.take_graph(), true, &stayed) catch |err| switch (err) {
        error.NotKept => unreachable, // nothing is kept
        else => |other| other,
    };
}

/// A keeper that keeps nothing; what a keeper has to offer.
const KeepsNothing = struct {
    /// Puts an insertion back to where it once stood, or leaves it as it is.
    pub fn restore(_: *KeepsNothing, _: *Insertion) error{OutOfMemory}!void {}

    /// Whether it is time to save.
    pub fn due(_: *KeepsNothing) bool {
        return false;
    }

    pub fn save(_: *KeepsNothing, _: *const Insertion) error{NotKept}!void {}
};

/// Rounds of a build, between which its work is kept: about `rounds`, each of `round_min` to `round_max` vertices.
const rounds = 64;
const round_min = 256;
const round_max = 8192;

/// Vertices of a batch that another device walks for do not find each other: it has a small part of those that are in the graph.
const walked_share = 8;
/// So small a part of the vertices is inserted without another device, which gains little from small batches.
const unassisted_share = 32;

/// As `build`; between rounds of insertions a keeper may save how far it came, and at the beginning put it back.
pub fn build_kept(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, options: BuildOptions, keeper: anytype) (types.Error || error{NotKept})!Graph {
    return build_over(Distances, allocator, distances, options, try Graph.empty(allocator, @intCast(distances.n), options.degree), false, keeper);
}

/// `given` is freed where nothing comes of it.
fn build_over(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, options: BuildOptions, given: Graph, is_initial: bool, keeper: anytype) (types.Error || error{NotKept})!Graph {
    const n: u32 = @intCast(distances.n);
    assert(n <= types.vertices_max);
    assert(options.degree >= 2 and options.degree <= std.math.maxInt(u8));
    assert(options.list_size >= 1);
    assert(options.alpha >= 1);
    assert(given.n == n and given.degree_max == options.degree);
    const crew = workers.Crew.of(options);
    var graph = given;
    errdefer graph.deinit(allocator);
    if (n == 0) return graph;

    {
        var builder = try Builder(Distances).init(allocator, distances, &graph, options, crew.numbers());
        defer builder.deinit(allocator);
        graph.entry = options.entry orelse connectivity.medoid(Distances, distances, n, options.seed);
        builder.shuffle();

        var insertion: Insertion = .{ .graph = &graph, .order = builder.order, .radii = builder.radii, .inserted = 0 };
        try keeper.restore(&insertion);
        if (is_initial) builder.stayed = insertion.inserted;
        builder.cursor.store(insertion.inserted, .monotonic);
        if (options.progress) |progress| _ = progress.fetchAdd(insertion.inserted, .monotonic);
        if (insertion.inserted < alone_max) {
            builder.limit = @min(n, alone_max);
            Builder(Distances).insert_many(&builder, 0);
        }
        const round = std.math.clamp(n / rounds, round_min, round_max);
        var other_device = if (is_initial) null else options.walks;
        while (builder.cursor.load(.monotonic) < n and !builder.stopped()) {
            const inserted = builder.cursor.load(.monotonic);
            builder.walks = if (inserted >= n / unassisted_share) other_device else null;
            const count = if (builder.walks) |walks| @min(walks.most, inserted / walked_share) else round;
            builder.limit = @intCast(@min(n, @as(u64, inserted) + count));
            if (builder.walks) |walks| {
                builder.walked_from = inserted;
                if (!walks.run(walks.context, &graph, builder.order[inserted..builder.limit])) {
                    builder.walks = null;
                    other_device = null;
                }
            }
            try workers.run(crew, &builder, Builder(Distances).insert_many);
            insertion.inserted = builder.limit;
            if (!builder.stopped() and insertion.inserted < n and keeper.due()) try keeper.save(&insertion);
        }
        builder.limit = n;
        builder.cursor.store(0, .monotonic);
        if (!builder.stopped()) try workers.run(crew, &builder, Builder(Distances).finish_many);
        if (builder.stopped()) return error.Canceled;
    }
    try connectivity.connect(Distances, allocator, distances, &graph, options.cancel);
    return graph;
}

fn Builder(comptime Distances: type) type {
    return struct {
        const Self = @This();

        distances: *const Distances,
        graph: *Graph,
        options: BuildOptions,
        locks: []workers.SpinLock,
        /// Distance of the last neighbor of a full list without newcomers; infinite for any other list.
        radii: []f32,
        order: []u32,
        tools: []Tools,
        cursor: std.atomic.Value(u32) = .init(0),
        limit: u32 = 0,
        /// In a graph with a former one: vertices of `order` that were there from the beginning. Lists may lead to vertices
        /// that are still to be inserted.
        stayed: u32 = 0,
        stop_requested: std.atomic.Value(bool) = .init(false),
        /// Followed vertices are known for `order` from `walked_from` on.
        walks: ?types.Walks = null,
        walked_from: u32 = 0,

        const Tools = struct {
            scratch: Scratch(Distances),
            pruner: Pruner(Distances),
            /// A list together with a newcomer, with distances.
            members: []Candidate,
            /// A copy of the list being expanded.
            buffer: []u32,

            fn init(allocator: std.mem.Allocator, distances: *const Distances, options: BuildOptions) error{OutOfMemory}!Tools {
                var scratch = try Scratch(Distances).init(allocator, distances, options.list_size, options.degree);
                errdefer scratch.deinit(allocator);
                var pruner = try Pruner(Distances).init(allocator, distances, options.degree);
                errdefer pruner.deinit(allocator);
                const members = try allocator.alloc(Candidate, options.degree + 1);
                errdefer allocator.free(members);
                return .{ .scratch = scratch, .pruner = pruner, .members = members, .buffer = try allocator.alloc(u32, options.degree) };
            }

            fn deinit(self: *Tools, allocator: std.mem.Allocator) void {
                self.scratch.deinit(allocator);
                self.pruner.deinit(allocator);
                allocator.free(self.members);
                allocator.free(self.buffer);
            }
        };

        fn init(allocator: std.mem.Allocator, distances: *const Distances, graph: *Graph, options: BuildOptions, worker_count: u32) error{OutOfMemory}!Self {
            const locks = try base.alloc_untouched(allocator, workers.SpinLock, graph.n);
            errdefer base.free_untouched(allocator, locks);
            @memset(locks, .{});
            const radii = try base.alloc_untouched(allocator, f32, graph.n);
            errdefer base.free_untouched(allocator, radii);
            @memset(radii, std.math.inf(f32));
            const order = try base.alloc_untouched(allocator, u32, graph.n);
            errdefer base.free_untouched(allocator, order);
            const tools = try allocator.alloc(Tools, worker_count);
            errdefer allocator.free(tools);
            var made: usize = 0;
            errdefer for (tools[0..made]) |*tool| tool.deinit(allocator);
            while (made < tools.len) : (made += 1) tools[made] = try Tools.init(allocator, distances, options);
            return .{ .distances = distances, .graph = graph, .options = options, .locks = locks, .radii = radii, .order = order, .tools = tools };
        }

        fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            for (self.tools) |*tool| tool.deinit(allocator);
            allocator.free(self.tools);
            base.free_untouched(allocator, self.order);
            base.free_untouched(allocator, self.radii);
            base.free_untouched(allocator, self.locks);
        }

        pub fn stop(self: *Self) void {
            self.stop_requested.store(true, .monotonic);
        }

        fn stopped(self: *Self) bool {
            if (self.options.cancel) |cancel| if (cancel.load(.monotonic)) return true;
            return self.stop_requested.load(.monotonic);
        }

        /// The entry first, then all others at random.
        fn shuffle(self: *Self) void {
            for (self.order, 0..) |*vertex, i| vertex.* = @intCast(i);
            std.mem.swap(u32, &self.order[0], &self.order[self.graph.entry]);
            var prng = base.Prng.init(self.options.seed);
            prng.shuffle(u32, self.order[1..]);
        }

        fn insert_many(self: *Self, worker: u32) void {
            const tools = &self.tools[worker];
            while (true) {
                const first = self.take() orelse return;
                for (self.order[first.from..first.to], first.from..) |vertex, place| {
                    if (self.stopped()) return;
                    self.insert(tools, vertex, @intCast(place));
                }
                if (self.options.progress) |progress| _ = progress.fetchAdd(first.to - first.from, .monotonic);
            }
        }

        fn take(self: *Self) ?struct { from: u32, to: u32 } {
            var from = self.cursor.load(.monotonic);
            while (from < self.limit) {
                const to = @min(from + batch, self.limit);
                from = self.cursor.cmpxchgWeak(from, to, .monotonic, .monotonic) orelse return .{ .from = from, .to = to };
            }
            return null;
        }

        fn copies_max(self: *const Self) u32 {
            return @max(self.options.degree / 4, 1);
        }

        fn insert(self: *Self, tools: *Tools, vertex: u32, place_in_order: u32) void {
            const scratch = &tools.scratch;
            if (vertex == self.graph.entry) return;
            if (self.walks) |walks| {
                take_followed(scratch, vertex, self.graph.n, walks.followed(walks.context, place_in_order - self.walked_from));
            } else {
                var starts: [initial_room.starts_max]u32 = undefined;
                const from = if (self.stayed == 0) &.{self.graph.entry} else initial_room.starts(self.order, self.stayed, self.cursor.load(.monotonic), &starts);
                scratch.begin(self.distances, vertex, from);
                scratch.walk(self.distances, self, tools.buffer);
            }
            const candidates = scratch.expanded[0..scratch.expanded_len];
            std.sort.pdq(Candidate, candidates, {}, Candidate.less);
            for (candidates) |*candidate| candidate.expanded = false;
            const kept = tools.pruner.prune(self.distances, candidates, self.options.degree, self.copies_max(), self.options.alpha);
            self.locks[vertex].lock();
            const row = self.graph.row(vertex);
            for (candidates[0..kept], row[0..kept]) |candidate, *place| place.* = candidate.id;
            self.graph.degrees[vertex] = @intCast(kept);
            if (kept == self.options.degree) self.radii[vertex] = candidates[kept - 1].distance();
            self.locks[vertex].unlock();
            for (candidates[0..kept]) |candidate| self.offer(tools, candidate.id, vertex, candidate.distance());
        }

        /// Uses the vertices that another device followed instead of a walk.
        fn take_followed(scratch: *Scratch(Distances), vertex: u32, n: u32, followed: []const quant.Candidate) void {
            scratch.expanded_len = 0;
            for (followed[0..@min(followed.len, scratch.expanded.len)]) |candidate| {
                if (candidate.vertex() >= n or candidate.vertex() == vertex or !std.math.isFinite(candidate.distance())) continue;
                scratch.expanded[scratch.expanded_len] = .init(candidate.distance(), candidate.vertex());
                scratch.expanded_len += 1;
            }
        }

        /// Adds `newcomer` to the list of `vertex`, unless it is refused or hidden there.
        fn offer(self: *Self, tools: *Tools, vertex: u32, newcomer: u32, distance: f32) void {
            const degree = self.options.degree;
            self.locks[vertex].lock();
            defer self.locks[vertex].unlock();
            const row = self.graph.row(vertex);
            const held = self.graph.degrees[vertex];
            if (self.stayed > 0 and leads_to(row[0..held], newcomer)) return;
            if (held < degree) {
                row[held] = newcomer | prune.mark;
                self.graph.degrees[vertex] = held + 1;
                return;
            }
            if (distance >= self.radii[vertex]) return;
            const ids = tools.scratch.ids[0..held];
            const out = tools.scratch.distances[0..held];
            for (row, ids) |neighbor, *id| id.* = neighbor & ~prune.mark;
            tools.scratch.origin.set(self.distances, vertex);
            tools.scratch.origin.measure(self.distances, ids, out);
            for (ids, out, row, tools.members[0..held]) |id, d, neighbor, *member| {
                member.* = .init(d, id);
                member.expanded = neighbor & prune.mark == 0;
            }
            tools.members[held] = .init(distance, newcomer);
            std.sort.insertion(Candidate, tools.members, {}, Candidate.less);
            const kept = tools.pruner.prune(self.distances, tools.members, degree, self.copies_max(), self.options.alpha);
            for (tools.members[0..kept], row[0..kept]) |member, *place| place.* = member.id;
            self.graph.degrees[vertex] = @intCast(kept);
            self.radii[vertex] = if (kept == degree) tools.members[kept - 1].distance() else std.math.inf(f32);
        }

        fn leads_to(list: []const u32, vertex: u32) bool {
            for (list) |neighbor| if (neighbor & ~prune.mark == vertex) return true;
            return false;
        }

        /// Called by a walk: a copy of a vertex's neighbors, taken under its lock.
        pub fn copy(self: *Self, vertex: u32, buffer: []u32) []const u32 {
            const row = self.graph.row(vertex);
            self.locks[vertex].lock();
            const held = self.graph.degrees[vertex];
            @memcpy(buffer[0..held], row[0..held]);
            self.locks[vertex].unlock();
            for (buffer[0..held]) |*neighbor| neighbor.* &= ~prune.mark;
            return buffer[0..held];
        }

        pub inline fn hint(self: *Self, vertex: u32) void {
            const row = self.graph.row(vertex);
            @prefetch(&self.locks[vertex], .{ .rw = .write });
            @prefetch(&self.graph.degrees[vertex], .{});
            var at: usize = 0;
            while (at < row.len) : (at += 16) @prefetch(&row[at], .{});
        }

        /// Takes the marks away and puts every list into pruning order. Each list has one thread now.
        fn finish_many(self: *Self, worker: u32) void {
            const tools = &self.tools[worker];
            while (self.take()) |range| {
                if (self.stopped()) return;
                for (range.from..range.to) |v| {
                    const vertex: u32 = @intCast(v);
                    const list = self.graph.list(vertex);
                    for (list) |*neighbor| neighbor.* &= ~prune.mark;
                    const out = tools.scratch.distances[0..list.len];
                    tools.scratch.origin.set(self.distances, vertex);
                    tools.scratch.origin.measure(self.distances, list, out);
                    const members = tools.members[0..list.len];
                    for (list, out, members) |id, d, *member| member.* = .init(d, id);
                    std.sort.insertion(Candidate, members, {}, Candidate.less);
                    tools.pruner.order(self.distances, members);
                    for (members, list) |member, *place| place.* = member.id;
                }
            }
        }
    };
}
