//! Which vertices share a page, and in which order pages follow each other. The order becomes the ids.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const types = @import("types.zig");
const workers = @import("workers.zig");
const arrange = @import("arrange.zig").arrange;
const refine = @import("refine.zig").refine;
const Candidate = @import("search.zig").Candidate;
const CandidateList = @import("search.zig").CandidateList;
const VisitedSet = @import("search.zig").VisitedSet;
const Origin = types.Origin;
const assert = std.debug.assert;

const Graph = types.Graph;
const Placement = types.Placement;

/// Fills page after page, each around a seed: of the vertices near the seed that are not placed yet, always the one that
/// is most like the members so far. How alike two vertices are is r(a)·r(b) / d(a, b)², with r the (squared) distance to
/// the `radius_rank`-th neighbor: a plain distance fills pages of dense regions and leaves what is alike by the measure
/// of a sparse region apart. The next seed is what was most like the page and did not fit, so pages follow each other
/// through space and ids of neighbors stay close. Then vertices change places between pages (refine.zig), and pages are
/// put in order (arrange.zig).
///
/// Threads fill pages side by side and claim vertices one by one; with one thread the result depends on nothing but the
/// arguments.
pub fn place(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, graph: *const Graph, options: types.PlaceOptions) types.Error!Placement {
    assert(options.record_bytes.len == graph.n);
    var placement = try fill_pages(Distances, allocator, distances, graph, options, .of(options));
    errdefer placement.deinit(allocator);
    try arrange(allocator, graph, &placement, options.cancel);
    return placement;
}

fn fill_pages(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, graph: *const Graph, options: types.PlaceOptions, crew: workers.Crew) types.Error!Placement {
    var job = try Job(Distances).init(allocator, distances, graph, options, crew.numbers());
    defer job.deinit(allocator);
    if (graph.n > 0) {
        try workers.run(crew, &job, Job(Distances).measure_many);
        if (!job.stopped()) try workers.run(crew, &job, Job(Distances).fill_many);
        if (job.stopped()) return error.Canceled;
    }
    var placement = try job.result(allocator);
    errdefer placement.deinit(allocator);
    if (!options.draft) try refine(Distances, allocator, distances, graph, options, job.radii, &placement, crew.in_shares());
    return placement;
}

const radius_rank = 32;
/// Expansions spent on finding a vertex's radius, which need not be exact.
const radius_expansions = 12;
/// Nearest vertices, placed or not, that the walk around a seed keeps in sight.
const walk_size = 192;
const expansions_max = 400;
/// Vertices not yet placed among which a page finds its members.
const pool_size = 512;
/// Copies are infinitely alike; one number for all of them keeps sums finite.
const likeness_max = 64;
const waiting_max = 1 << 14;
const no_vertex: u32 = std.math.maxInt(u32);

fn Job(comptime Distances: type) type {
    return struct {
        const Self = @This();

        distances: *const Distances,
        graph: *const Graph,
        options: types.PlaceOptions,
        placed: []std.atomic.Value(bool),
        /// Squared distance of every vertex's `radius_rank`-th neighbor, about.
        radii: []f32,
        /// The vertex placed after this one by the same thread.
        next: []u32,
        /// Whether a page begins with this vertex.
        begins: []bool,
        fillers: []Filler(Distances),
        cursor: std.atomic.Value(u32) = .init(0),
        stop_requested: std.atomic.Value(bool) = .init(false),

        fn init(allocator: std.mem.Allocator, distances: *const Distances, graph: *const Graph, options: types.PlaceOptions, worker_count: u32) error{OutOfMemory}!Self {
            const placed = try base.alloc_untouched(allocator, std.atomic.Value(bool), graph.n);
            errdefer base.free_untouched(allocator, placed);
            @memset(placed, .init(false));
            const radii = try base.alloc_untouched(allocator, f32, graph.n);
            errdefer base.free_untouched(allocator, radii);
            const next = try base.alloc_untouched(allocator, u32, graph.n);
            errdefer base.free_untouched(allocator, next);
            const begins = try base.alloc_untouched(allocator, bool, graph.n);
            errdefer base.free_untouched(allocator, begins);
            @memset(begins, false);
            const fillers = try allocator.alloc(Filler(Distances), worker_count);
            errdefer allocator.free(fillers);
            var made: usize = 0;
            errdefer for (fillers[0..made]) |*filler| filler.deinit(allocator);
            while (made < fillers.len) : (made += 1) fillers[made] = try .init(allocator, distances, graph.degree_max);
            return .{ .distances = distances, .graph = graph, .options = options, .placed = placed, .radii = radii, .next = next, .begins = begins, .fillers = fillers };
        }

        fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            for (self.fillers) |*filler| filler.deinit(allocator);
            allocator.free(self.fillers);
            base.free_untouched(allocator, self.begins);
            base.free_untouched(allocator, self.next);
            base.free_untouched(allocator, self.radii);
            base.free_untouched(allocator, self.placed);
        }

        pub fn stop(self: *Self) void {
            self.stop_requested.store(true, .monotonic);
        }

        fn stopped(self: *Self) bool {
            if (self.options.cancel) |cancel| if (cancel.load(.monotonic)) return true;
            return self.stop_requested.load(.monotonic);
        }

        fn measure_many(self: *Self, worker: u32) void {
            const chunk = 64;
            while (!self.stopped()) {
                const from = self.cursor.fetchAdd(chunk, .monotonic);
                if (from >= self.graph.n) return;
                for (from..@min(from + chunk, self.graph.n)) |v| self.radii[v] = self.fillers[worker].radius(self, @intCast(v));
            }
        }

        fn fill_many(self: *Self, worker: u32) void {
            const filler = &self.fillers[worker];
            // Threads start far from each other and each fills what it meets first.
            filler.scan = @intCast(@as(u64, self.graph.n) * worker / self.fillers.len);
            if (worker == 0) filler.keep_waiting(self.graph.entry);
            while (!self.stopped()) {
                const count = filler.fill(self);
                if (count == 0) return;
                if (self.options.progress) |progress| _ = progress.fetchAdd(count, .monotonic);
            }
        }

        fn claim(self: *Self, vertex: u32) bool {
            return !self.placed[vertex].load(.monotonic) and !self.placed[vertex].swap(true, .monotonic);
        }

        fn result(self: *Self, allocator: std.mem.Allocator) error{OutOfMemory}!Placement {
            var pages: usize = 0;
            for (self.begins) |begin| pages += @intFromBool(begin);
            const order = try base.alloc_untouched(allocator, u32, self.graph.n);
            errdefer base.free_untouched(allocator, order);
            const page_first = try base.alloc_untouched(allocator, u32, pages);
            var new: u32 = 0;
            var page: u32 = 0;
            for (self.fillers) |*filler| {
                var vertex = filler.first;
                while (vertex != no_vertex) : (vertex = self.next[vertex]) {
                    if (self.begins[vertex]) {
                        page_first[page] = new;
                        page += 1;
                    }
                    order[new] = vertex;
                    new += 1;
                }
            }
            assert(new == self.graph.n and page == pages);
            return .{ .order = order, .page_first = page_first };
        }
    };
}

/// The data of one thread that fills pages.
fn Filler(comptime Distances: type) type {
    return struct {
        const Self = @This();

        origin: Origin(Distances),
        walk: CandidateList,
        /// Unplaced vertices nearest to the seed.
        pool: CandidateList,
        visited: VisitedSet,
        ids: []u32,
        out: []f32,
        /// The likeness of each vertex of the pool to the page.
        scores: []f32,
        /// Unplaced vertices beside earlier pages, latest last; the oldest are forgotten.
        waiting: []u32,
        waiting_end: u64 = 0,
        waiting_len: u32 = 0,
        /// The place to look for a vertex when none is waiting.
        scan: u32 = 0,
        scanned: u32 = 0,
        first: u32 = no_vertex,
        last: u32 = no_vertex,

        fn init(allocator: std.mem.Allocator, distances: *const Distances, degree: u32) error{OutOfMemory}!Self {
            var origin = try Origin(Distances).init(allocator, distances);
            errdefer origin.deinit(allocator);
            const walk = try allocator.alloc(Candidate, walk_size);
            errdefer allocator.free(walk);
            const pool = try allocator.alloc(Candidate, pool_size);
            errdefer allocator.free(pool);
            const slots = try allocator.alloc(u32, std.math.ceilPowerOfTwoAssert(usize, expansions_max * @as(usize, degree)));
            errdefer allocator.free(slots);
            const longest = @max(degree, pool_size);
            const ids = try allocator.alloc(u32, longest);
            errdefer allocator.free(ids);
            const out = try allocator.alloc(f32, longest);
            errdefer allocator.free(out);
            const scores = try allocator.alloc(f32, pool_size);
            errdefer allocator.free(scores);
            return .{
                .origin = origin,
                .walk = .{ .items = walk },
                .pool = .{ .items = pool },
                .visited = .{ .slots = slots },
                .ids = ids,
                .out = out,
                .scores = scores,
                .waiting = try allocator.alloc(u32, waiting_max),
            };
        }

        fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            self.origin.deinit(allocator);
            allocator.free(self.walk.items);
            allocator.free(self.pool.items);
            allocator.free(self.visited.slots);
            allocator.free(self.ids);
            allocator.free(self.out);
            allocator.free(self.scores);
            allocator.free(self.waiting);
        }

        fn radius(self: *Self, job: *Job(Distances), vertex: u32) f32 {
            const all = self.walk.items;
            defer self.walk.items = all;
            self.walk.items = all[0..radius_rank];
            // Clearing what so short a walk cannot fill would take longer than the walk.
            const slots = self.visited.slots;
            defer self.visited.slots = slots;
            self.visited.slots = slots[0..@min(slots.len, std.math.ceilPowerOfTwoAssert(usize, 2 * radius_expansions * @as(usize, job.graph.degree_max)))];
            self.gather(job, vertex, radius_expansions, false);
            return if (self.walk.len > 0) self.walk.items[self.walk.len - 1].distance() else 0;
        }

        /// A vertex that was unplaced a moment ago.
        fn next_seed(self: *Self, job: *Job(Distances)) ?u32 {
            while (self.waiting_len > 0) {
                self.waiting_end -= 1;
                self.waiting_len -= 1;
                const vertex = self.waiting[@intCast(self.waiting_end % waiting_max)];
                if (!job.placed[vertex].load(.monotonic)) return vertex;
            }
            while (self.scanned < job.graph.n) {
                const vertex = self.scan;
                self.scanned += 1;
                self.scan = if (self.scan + 1 == job.graph.n) 0 else self.scan + 1;
                if (!job.placed[vertex].load(.monotonic)) return vertex;
            }
            return null;
        }

        fn keep_waiting(self: *Self, vertex: u32) void {
            self.waiting[@intCast(self.waiting_end % waiting_max)] = vertex;
            self.waiting_end += 1;
            self.waiting_len = @min(self.waiting_len + 1, waiting_max);
        }

        fn append(self: *Self, job: *Job(Distances), vertex: u32) void {
            if (self.first == no_vertex) self.first = vertex else job.next[self.last] = vertex;
            job.next[vertex] = no_vertex;
            self.last = vertex;
        }

        /// Fills one page and returns how many vertices it took; 0 when none is left.
        fn fill(self: *Self, job: *Job(Distances)) u32 {
            var bytes: u32 = 0;
            var count: u32 = 0;
            // The pool may run out before the page is full: then what is left elsewhere shares the page.
            while (self.next_seed(job)) |seed| {
                const fits = bytes + job.options.record_bytes[seed] <= job.options.page_bytes_budget;
                if (count > 0 and !fits) {
                    self.keep_waiting(seed);
                    break;
                }
                if (!job.claim(seed)) continue;
                if (count == 0) job.begins[seed] = true;
                self.append(job, seed);
                bytes += job.options.record_bytes[seed];
                count += 1;
                self.gather(job, seed, expansions_max, true);
                @memset(self.scores[0..self.pool.len], 0);
                var newest = seed;
                const full = while (self.pool.len > 0) {
                    self.welcome(job, newest);
                    const index = std.mem.indexOfMax(f32, self.scores[0..self.pool.len]);
                    newest = self.pool.items[index].id;
                    if (bytes + job.options.record_bytes[newest] > job.options.page_bytes_budget) break true;
                    self.drop(index);
                    if (!job.claim(newest)) {
                        // Another thread took it: nothing to add to the scores, so choose again.
                        newest = no_vertex;
                        continue;
                    }
                    self.append(job, newest);
                    bytes += job.options.record_bytes[newest];
                    count += 1;
                } else false;
                self.leave();
                if (full) break;
            }
            return count;
        }

        /// Adds to every score how much its vertex is like the page's newest member.
        fn welcome(self: *Self, job: *Job(Distances), newest: u32) void {
            if (newest == no_vertex) return;
            const pool = self.pool.slice();
            const ids = self.ids[0..pool.len];
            const out = self.out[0..pool.len];
            for (pool, ids) |candidate, *id| id.* = candidate.id;
            self.origin.set(job.distances, newest);
            self.origin.measure(job.distances, ids, out);
            const reach = job.radii[newest];
            for (self.scores[0..pool.len], ids, out) |*score, id, d| {
                const product = reach * job.radii[id];
                score.* += if (d * d * likeness_max > product) product / (d * d) else likeness_max;
            }
        }

        fn drop(self: *Self, index: usize) void {
            self.pool.len -= 1;
            self.pool.items[index] = self.pool.items[self.pool.len];
            self.scores[index] = self.scores[self.pool.len];
        }

        /// The rest of the pool waits; what is most like the page is pushed last and becomes the next seed.
        fn leave(self: *Self) void {
            const Left = struct {
                score: f32,
                vertex: u32,

                fn less(_: void, a: @This(), b: @This()) bool {
                    return if (a.score != b.score) a.score < b.score else a.vertex < b.vertex;
                }
            };
            var buffer: [pool_size]Left = undefined;
            const left = buffer[0..self.pool.len];
            for (left, self.pool.slice(), self.scores[0..left.len]) |*item, candidate, score| item.* = .{ .score = score, .vertex = candidate.id };
            std.sort.pdq(Left, left, {}, Left.less);
            for (left) |item| self.keep_waiting(item.vertex);
        }

        /// Walks from `center` to the vertices nearest to it; if `pooling`, collects the unplaced ones it meets.
        fn gather(self: *Self, job: *Job(Distances), center: u32, expansions_limit: u32, pooling: bool) void {
            self.walk.len = 0;
            self.pool.len = 0;
            self.visited.clear();
            _ = self.visited.insert(center);
            self.origin.set(job.distances, center);
            _ = self.meet(job, center, job.graph.list(center), pooling);
            var cursor: u32 = 0;
            var expansions: u32 = 0;
            while (cursor < self.walk.len and expansions < expansions_limit) {
                const current = &self.walk.items[cursor];
                if (current.expanded) {
                    cursor += 1;
                    continue;
                }
                current.expanded = true;
                expansions += 1;
                cursor = @min(cursor + 1, self.meet(job, center, job.graph.list(current.id), pooling));
            }
        }

        fn meet(self: *Self, job: *Job(Distances), center: u32, neighbors: []const u32, pooling: bool) u32 {
            const fresh = self.visited.insert_many(neighbors, self.ids);
            self.origin.measure(job.distances, self.ids[0..fresh], self.out[0..fresh]);
            var lowest: u32 = std.math.maxInt(u32);
            for (self.ids[0..fresh], self.out[0..fresh]) |id, d| {
                if (id == center) continue;
                if (takes(&self.walk, d)) if (self.walk.insert(.init(d, id))) |position| {
                    lowest = @min(lowest, position);
                };
                if (pooling and takes(&self.pool, d) and !job.placed[id].load(.monotonic)) _ = self.pool.insert(.init(d, id));
            }
            return lowest;
        }
    };
}

/// Of vertices equally far, a full list keeps those it met first: were it to prefer any by id, every walk among many
/// copies of one vector would end at the same few, long placed.
inline fn takes(list: *const CandidateList, distance: f32) bool {
    @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
    return list.len < list.items.len or distance < list.items[list.len - 1].distance();
}

/// Rewrites the graph in placement ids, in place.
pub fn remap(allocator: std.mem.Allocator, graph: *Graph, placement: *const Placement) error{OutOfMemory}!void {
    assert(placement.order.len == graph.n);
    if (graph.n == 0) return;
    const new_ids = try placement.inverse(allocator);
    defer base.free_untouched(allocator, new_ids);
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

// ---- colors ----
//
// Affinity colors: records of a page that lie close together, so that a cache may keep them together.

/// The largest squared distance at which two vectors are affine: a percentile (the 5th by default) of the squared
/// distances to a cluster's centroid, averaged over clusters. Clusters are those of randomly drawn centers over a sample; a point is
/// on average twice as far, squared, from a random member as from the centroid, hence the half.
pub fn affinity_threshold(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, n: u32, percent: u32, seed: u64) error{OutOfMemory}!f32 {
    const centers_max = 64;
    const sample_max = 8192;
    const members_min = 20;
    std.debug.assert(percent < 100);
    if (n < 2) return 0;
    var prng = base.Prng.init(seed).split(0x6166_6669);
    var centers: [centers_max]u32 = undefined;
    const center_count = @min(centers_max, @max(n / members_min, 1));
    for (centers[0..center_count]) |*center| center.* = @intCast(prng.below(n));

    const Member = struct {
        center: u32,
        distance: f32,

        fn less(_: void, a: @This(), b: @This()) bool {
            return if (a.center != b.center) a.center < b.center else a.distance < b.distance;
        }
    };
    var members: std.ArrayList(Member) = try .initCapacity(allocator, @min(n, sample_max));
    defer members.deinit(allocator);
    var out: [centers_max]f32 = undefined;
    for (0..members.capacity) |i| {
        const vertex: u32 = if (n <= sample_max) @intCast(i) else @intCast(prng.below(n));
        if (std.mem.indexOfScalar(u32, centers[0..center_count], vertex) != null) continue;
        distances.distances(vertex, centers[0..center_count], out[0..center_count]);
        const nearest = std.mem.indexOfMin(f32, out[0..center_count]);
        members.appendAssumeCapacity(.{ .center = @intCast(nearest), .distance = out[nearest] });
        if (members.items.len == members.capacity) break;
    }
    std.sort.pdq(Member, members.items, {}, Member.less);
    var sum: f64 = 0;
    var clusters: f64 = 0;
    var at: usize = 0;
    while (at < members.items.len) {
        var end = at;
        while (end < members.items.len and members.items[end].center == members.items[at].center) end += 1;
        if (end - at >= members_min or end - at == members.items.len) {
            sum += members.items[at + (end - at) * percent / 100].distance;
            clusters += 1;
        }
        at = end;
    }
    return if (clusters == 0) 0 else @floatCast(sum / clusters / 2);
}

/// The color of every record, by new id. On a page, the first record without a color takes every other one within
/// `threshold` of it into a set of its own color, 1, 2, … 255, 1, …; a record alone has color 0.
pub fn color(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, placement: *const Placement, threshold: f32) error{OutOfMemory}![]u8 {
    const colors = try base.alloc_untouched(allocator, u8, placement.order.len);
    errdefer base.free_untouched(allocator, colors);
    @memset(colors, 0);
    var out: [256]f32 = undefined;
    for (0..placement.page_first.len) |index| {
        const page = placement.page(index);
        var latest: u8 = 0;
        for (page.from..page.to) |leader| {
            if (colors[leader] != 0) continue;
            const next: u8 = if (latest == 255) 1 else latest + 1;
            var used = false;
            var from = leader + 1;
            while (from < page.to) : (from += out.len) {
                const to = @min(from + out.len, page.to);
                distances.distances(placement.order[leader], placement.order[from..to], out[0 .. to - from]);
                for (colors[from..to], out[0 .. to - from]) |*tag, d| {
                    if (tag.* != 0 or d > threshold) continue;
                    tag.* = next;
                    used = true;
                }
            }
            if (used) {
                colors[leader] = next;
                latest = next;
            }
        }
    }
    return colors;
}
