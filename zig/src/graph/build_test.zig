//! Builds over points whose neighbors are known by arithmetic or by brute force.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const connectivity = @import("connect.zig");
const types = @import("types.zig");
const vamana = @import("vamana.zig");
const search = @import("search.zig");
const Plain = @import("connect.zig").Plain;
const prune = @import("prune.zig");
const oracle = @import("testing.zig");
const workers = @import("workers.zig");
const testing = std.testing;
const linux = std.os.linux;
const Crew = workers.Crew;

const Graph = types.Graph;
const BuildOptions = types.BuildOptions;
const Candidate = search.Candidate;
const FloatDistances = oracle.FloatDistances;

fn build(points: *const FloatDistances, options: BuildOptions) !Graph {
    return vamana.build(FloatDistances, testing.allocator, points, options);
}

fn expect_all_reachable(graph: *const Graph) !void {
    try testing.expectEqual(graph.n, try connectivity.reachable_count(testing.allocator, graph, graph.degree_max));
}

fn pruned_by_definition(points: *const FloatDistances, candidates: []const Candidate, alpha: f32, out: []u32) u32 {
    var len: u32 = 0;
    for (candidates) |candidate| {
        if (len == out.len) break;
        const hidden = for (out[0..len]) |kept| {
            if (alpha * points.distance(kept, candidate.id) < candidate.distance()) break true;
        } else false;
        if (hidden) continue;
        out[len] = candidate.id;
        len += 1;
    }
    return len;
}

const DefinedList = struct {
    ids: [degree]u32 = undefined,
    len: u32 = 0,
    /// Farther ones are refused: a full list without a new member.
    radius: f32 = std.math.inf(f32),
    pruned: u32 = 0,

    const degree = 12;

    /// Takes what pruning leaves of candidates, nearest first.
    fn prune(self: *DefinedList, points: *const FloatDistances, candidates: []Candidate, alpha: f32) void {
        std.sort.pdq(Candidate, candidates, {}, Candidate.less);
        self.len = pruned_by_definition(points, candidates, alpha, &self.ids);
        self.radius = std.math.inf(f32);
        if (self.len < degree) return;
        for (candidates) |candidate| {
            if (candidate.id == self.ids[degree - 1]) self.radius = candidate.distance();
        }
    }
};

/// Every vertex in order: pruned from all that the entry leads to, then offered to those that it keeps.
fn built_by_definition(points: *const FloatDistances, order: []const u32, alpha: f32, lists: []DefinedList) !void {
    var reached = try base.BitSet.init(testing.allocator, points.n);
    defer reached.deinit(testing.allocator);
    const stack = try testing.allocator.alloc(u32, points.n);
    defer testing.allocator.free(stack);
    const candidates = try testing.allocator.alloc(Candidate, points.n);
    defer testing.allocator.free(candidates);
    for (order[1..]) |vertex| {
        reached.clear();
        reached.insert(order[0]);
        stack[0] = order[0];
        var waiting: u32 = 1;
        var count: u32 = 0;
        while (waiting > 0) {
            waiting -= 1;
            const at = stack[waiting];
            candidates[count] = .init(points.distance(vertex, at), at);
            count += 1;
            for (lists[at].ids[0..lists[at].len]) |id| {
                if (reached.contains(id)) continue;
                reached.insert(id);
                stack[waiting] = id;
                waiting += 1;
            }
        }
        const own = &lists[vertex];
        own.prune(points, candidates[0..count], alpha);
        for (own.ids[0..own.len]) |id| {
            const list = &lists[id];
            const distance = points.distance(id, vertex);
            if (list.len < DefinedList.degree) {
                list.ids[list.len] = vertex;
                list.len += 1;
                continue;
            }
            if (distance >= list.radius) continue;
            var members: [DefinedList.degree + 1]Candidate = undefined;
            for (list.ids, members[0..DefinedList.degree]) |member, *place| place.* = .init(points.distance(id, member), member);
            members[DefinedList.degree] = .init(distance, vertex);
            list.prune(points, &members, alpha);
            list.pruned += 1;
        }
    }
}

/// Raises the flag after a number of calls and counts those that still come.
const CancelingDistances = struct {
    inner: *const FloatDistances,
    n: u32,
    calls_left: *std.atomic.Value(i64),
    flag: *std.atomic.Value(bool),

    pub fn distance(self: *const CancelingDistances, a: u32, b: u32) f32 {
        return self.inner.distance(a, b);
    }

    pub fn distances(self: *const CancelingDistances, from: u32, ids: []const u32, out: []f32) void {
        if (self.calls_left.fetchSub(1, .monotonic) <= 1) self.flag.store(true, .monotonic);
        self.inner.distances(from, ids, out);
    }
};

// ---- workers ----
//
// Each piece of work is done once, however much is left to who does it.

/// Work that is handed out piece by piece, and what those who did it saw.
const Pieces = struct {
    const count = 1000;

    crew: Crew,
    next: std.atomic.Value(u32) = .init(0),
    done: [count]std.atomic.Value(u32) = @splat(.init(0)),
    wrong: std.atomic.Value(u32) = .init(0),
    stopped: bool = false,
    /// Those behind wait for it, as if no processor were left to them.
    may_run: ?*std.Thread.ResetEvent = null,

    fn work(self: *Pieces, worker: u32) void {
        const is_behind = self.crew.gives_way and worker < self.crew.threads;
        if (worker >= self.crew.numbers() or policy() != @as(usize, if (is_behind) 5 else 0)) _ = self.wrong.fetchAdd(1, .monotonic);
        if (self.may_run) |event| if (is_behind) event.wait();
        while (true) {
            const piece = self.next.fetchAdd(1, .monotonic);
            if (piece >= count) break;
            _ = self.done[piece].fetchAdd(1, .monotonic);
        }
        if (self.may_run) |event| event.set();
    }

    pub fn stop(self: *Pieces) void {
        self.stopped = true;
    }

    fn expect_each_once(self: *const Pieces) !void {
        for (&self.done) |*times| try testing.expectEqual(1, times.load(.monotonic));
        try testing.expectEqual(0, self.wrong.load(.monotonic));
        try testing.expect(!self.stopped);
    }
};

/// Of the calling thread, as the kernel numbers them: 0 the usual one, 5 behind all others.
fn policy() usize {
    return linux.syscall1(.sched_getscheduler, 0);
}

test "on a grid every point is linked to the points beside it" {
    const side = 40;
    var points = try FloatDistances.grid(side);
    defer points.deinit();
    var graph = try build(&points, .{ .degree = 12, .list_size = 40, .seed = 3 });
    defer graph.deinit(testing.allocator);
    try oracle.expect_sound(&graph);
    try expect_all_reachable(&graph);
    // Nothing can hide a point one step away: α times the distance to any other point is at least α.
    for (0..side * side) |v| {
        const list = graph.list(@intCast(v));
        const x = v % side;
        const y = v / side;
        if (x > 0) try testing.expect(std.mem.indexOfScalar(u32, list, @intCast(v - 1)) != null);
        if (x + 1 < side) try testing.expect(std.mem.indexOfScalar(u32, list, @intCast(v + 1)) != null);
        if (y > 0) try testing.expect(std.mem.indexOfScalar(u32, list, @intCast(v - side)) != null);
        if (y + 1 < side) try testing.expect(std.mem.indexOfScalar(u32, list, @intCast(v + side)) != null);
    }
    // The entry is a medoid: near the middle.
    const x: i64 = graph.entry % side;
    const y: i64 = graph.entry / side;
    try testing.expect(@abs(x - side / 2) <= 4 and @abs(y - side / 2) <= 4);
}

test "walks find the ten nearest of queries that are not in a graph built by two threads" {
    for ([_]u64{ 1, 2 }) |seed| {
        errdefer std.debug.print("seed {}\n", .{seed});
        var points = try FloatDistances.gaussian(2500, 100, 12, seed);
        defer points.deinit();
        var graph = try build(&points, .{ .degree = 24, .list_size = 60, .threads = 2, .seed = seed });
        defer graph.deinit(testing.allocator);
        try oracle.expect_sound(&graph);
        try expect_all_reachable(&graph);
        const recall = try oracle.recall_at_10(&points, &graph, 60);
        errdefer std.debug.print("recall {d}\n", .{recall});
        try testing.expect(recall > 0.97);
    }
}

test "pruning order: the first links alone still lead to the neighbors" {
    var points = try FloatDistances.gaussian(4000, 100, 12, 5);
    defer points.deinit();
    var graph = try build(&points, .{ .degree = 24, .list_size = 60, .seed = 5 });
    defer graph.deinit(testing.allocator);
    const links = 8;
    const degrees = try testing.allocator.dupe(u16, graph.degrees);
    defer testing.allocator.free(degrees);
    for (graph.degrees) |*degree| degree.* = @min(degree.*, links);
    const ordered = try oracle.recall_at_10(&points, &graph, 60);
    @memcpy(graph.degrees, degrees);
    for (0..graph.n) |v| {
        var members: [24]Candidate = undefined;
        const list = graph.list(@intCast(v));
        for (list, members[0..list.len]) |neighbor, *member| member.* = .init(points.distance(@intCast(v), neighbor), neighbor);
        std.sort.pdq(Candidate, members[0..list.len], {}, Candidate.less);
        for (list, members[0..list.len]) |*neighbor, member| neighbor.* = member.id;
    }
    for (graph.degrees) |*degree| degree.* = @min(degree.*, links);
    const nearest_first = try oracle.recall_at_10(&points, &graph, 60);
    errdefer std.debug.print("recall {d}, nearest first {d}\n", .{ ordered, nearest_first });
    try testing.expect(ordered > 0.9);
    try testing.expect(ordered > nearest_first + 0.02);
}

test "codes of the quant room build as well as floats" {
    const n = 1500;
    const dim = 32;
    var points = try FloatDistances.gaussian(n, 100, dim, 8);
    defer points.deinit();
    var codes = try quant.BuildCodes.init(n, dim);
    defer codes.deinit();
    const params = quant.BuildCodes.params_of(dim);
    var encoder = try quant.Encoder.init(testing.allocator, params);
    defer encoder.deinit(testing.allocator);
    var wide: [dim]u16 = undefined;
    for (0..n) |v| codes.set(@intCast(v), &encoder, points.row(@intCast(v)), &wide);
    var from_codes = try vamana.build(quant.BuildCodes, testing.allocator, &codes, .{ .degree = 32, .list_size = 80, .threads = 2 });
    defer from_codes.deinit(testing.allocator);
    try oracle.expect_sound(&from_codes);
    var from_floats = try build(&points, .{ .degree = 32, .list_size = 80, .threads = 2 });
    defer from_floats.deinit(testing.allocator);
    const recall = try oracle.recall_at_10(&points, &from_codes, 60);
    errdefer std.debug.print("recall {d}\n", .{recall});
    try testing.expect(recall > 0.9);
    try testing.expect(recall > try oracle.recall_at_10(&points, &from_floats, 60) - 0.02);
}

test "one thread and one seed give one graph" {
    var points = try FloatDistances.gaussian(1500, 0, 8, 4);
    defer points.deinit();
    const options = BuildOptions{ .degree = 16, .list_size = 30, .seed = 9 };
    var first = try build(&points, options);
    defer first.deinit(testing.allocator);
    var second = try build(&points, options);
    defer second.deinit(testing.allocator);
    try oracle.expect_equal_graphs(&first, &second);
    var other = try build(&points, .{ .degree = 16, .list_size = 30, .seed = 10 });
    defer other.deinit(testing.allocator);
    try testing.expect(!std.mem.eql(u16, first.degrees, other.degrees));
}

test "many threads on few points keep every list whole" {
    // Lists are hit from all sides: the case for the thread sanitizer.
    for (0..3) |seed| {
        errdefer std.debug.print("seed {}\n", .{seed});
        var points = try FloatDistances.gaussian(1200, 0, 4, seed);
        defer points.deinit();
        var graph = try build(&points, .{ .degree = 8, .list_size = 16, .threads = 8, .gives_way = seed == 1, .seed = seed });
        defer graph.deinit(testing.allocator);
        try oracle.expect_sound(&graph);
        try expect_all_reachable(&graph);
    }
}

test "no, one, two and a few points, and fewer points than the degree" {
    for ([_]u32{ 0, 1, 2, 3, 5, 20, 40 }) |n| {
        for ([_]u32{ 1, 4 }) |threads| {
            errdefer std.debug.print("n {} threads {}\n", .{ n, threads });
            var points = try FloatDistances.gaussian(n, 0, 3, n);
            defer points.deinit();
            var graph = try build(&points, .{ .threads = threads });
            defer graph.deinit(testing.allocator);
            try oracle.expect_sound(&graph);
            try expect_all_reachable(&graph);
        }
    }
}

test "identical vectors: built, filled, reachable, searchable" {
    var points = try FloatDistances.identical(6000, 4);
    defer points.deinit();
    var progress: std.atomic.Value(u64) = .init(0);
    var graph = try build(&points, .{ .degree = 16, .list_size = 32, .threads = 2, .progress = &progress });
    defer graph.deinit(testing.allocator);
    try testing.expectEqual(points.n, progress.load(.monotonic));
    try oracle.expect_sound(&graph);
    try expect_all_reachable(&graph);
    var degrees: u64 = 0;
    for (graph.degrees) |degree| degrees += degree;
    try testing.expect(degrees >= 3 * @as(u64, graph.n));
    var scratch = try search.Scratch(FloatDistances).init(testing.allocator, &points, 32, graph.degree_max);
    defer scratch.deinit(testing.allocator);
    scratch.begin(&points, 77, &.{graph.entry});
    scratch.walk(&points, Plain{ .graph = &graph }, &.{});
    try testing.expectEqual(32, scratch.list.len);
}

test "clusters far apart, and points with many copies, stay connected" {
    var clusters = try FloatDistances.clustered(2000, 25, 8, 6);
    defer clusters.deinit();
    var graph = try build(&clusters, .{ .degree = 12, .list_size = 24, .threads = 2 });
    defer graph.deinit(testing.allocator);
    try oracle.expect_sound(&graph);
    try expect_all_reachable(&graph);

    var copies = try FloatDistances.gaussian(3000, 0, 8, 7);
    defer copies.deinit();
    for (50..copies.n) |v| @memcpy(copies.row(@intCast(v)), copies.row(@intCast(v % 50)));
    var copied = try build(&copies, .{ .degree = 12, .list_size = 24, .threads = 2 });
    defer copied.deinit(testing.allocator);
    try oracle.expect_sound(&copied);
    try expect_all_reachable(&copied);
}

test "connect reaches all of a graph with full lists, the same way every time" {
    const n = 300;
    const degree = 4;
    var points = try FloatDistances.gaussian(n, 0, 4, 12);
    defer points.deinit();
    var graphs: [2]Graph = undefined;
    for (&graphs) |*graph| {
        graph.* = .{ .n = n, .degree_max = degree, .entry = 5, .neighbors = try testing.allocator.alloc(u32, n * degree), .degrees = try testing.allocator.alloc(u16, n) };
        // Rings of ten: each vertex leads to the four after it in its ring and nowhere else.
        for (0..n) |v| for (0..degree) |i| {
            graph.neighbors[v * degree + i] = @intCast(v / 10 * 10 + (v + 1 + i) % 10);
        };
        @memset(graph.degrees, degree);
    }
    defer for (&graphs) |*graph| graph.deinit(testing.allocator);
    try testing.expectEqual(10, try connectivity.reachable_count(testing.allocator, &graphs[0], degree));
    for (&graphs) |*graph| try connectivity.connect(FloatDistances, testing.allocator, &points, graph, null);
    try oracle.expect_sound(&graphs[0]);
    try expect_all_reachable(&graphs[0]);
    try oracle.expect_equal_graphs(&graphs[0], &graphs[1]);
}

test "pruning agrees with its definition, also where lists were pruned before" {
    const degree = 10;
    const alpha = 1.2;
    for (0..200) |seed| {
        errdefer std.debug.print("seed {}\n", .{seed});
        var points = try FloatDistances.gaussian(40, 0, 3, seed);
        defer points.deinit();
        var pruner = try prune.Pruner(FloatDistances).init(testing.allocator, &points, degree);
        defer pruner.deinit(testing.allocator);
        var candidates: [39]Candidate = undefined;
        for (&candidates, 1..) |*candidate, v| candidate.* = .init(points.distance(0, @intCast(v)), @intCast(v));
        std.sort.pdq(Candidate, &candidates, {}, Candidate.less);
        var expected: [degree]u32 = undefined;
        const expected_len = pruned_by_definition(&points, &candidates, alpha, &expected);

        // In one go.
        var once = candidates;
        const once_len = pruner.prune(&points, &once, degree, 4, alpha);
        try testing.expectEqual(expected_len, once_len);
        for (once[0..once_len], expected[0..once_len]) |candidate, id| try testing.expectEqual(id, candidate.id);

        // The nearer half first, then its survivors, known not to hide each other, with the rest.
        var twice = candidates;
        const half_len = pruner.prune(&points, twice[0..20], degree, 4, alpha);
        for (twice[0..half_len]) |*candidate| candidate.expanded = true;
        std.mem.copyForwards(Candidate, twice[half_len..], twice[20..]);
        const twice_len = pruner.prune(&points, twice[0 .. half_len + 19], degree, 4, alpha);
        for (twice[0..twice_len], expected[0..twice_len]) |candidate, id| try testing.expectEqual(id, candidate.id);
        try testing.expectEqual(expected_len, twice_len);
    }
}

test "a build agrees with its definition where walks meet every vertex" {
    const n = 200;
    const alpha = 1.2;
    for (0..5) |seed| {
        errdefer std.debug.print("seed {}\n", .{seed});
        var points = try FloatDistances.gaussian(n, 0, 8, seed);
        defer points.deinit();
        var graph = try build(&points, .{ .degree = DefinedList.degree, .list_size = n, .alpha = alpha, .seed = seed, .entry = 7 });
        defer graph.deinit(testing.allocator);
        // The entry first, then all others at random.
        var order: [n]u32 = undefined;
        for (&order, 0..) |*vertex, i| vertex.* = @intCast(i);
        std.mem.swap(u32, &order[0], &order[7]);
        var prng = base.Prng.init(seed);
        prng.shuffle(u32, order[1..]);
        var lists: [n]DefinedList = @splat(.{});
        try built_by_definition(&points, &order, alpha, &lists);
        var pruned: u32 = 0;
        for (&lists, 0..) |*list, v| {
            errdefer std.debug.print("vertex {}\n", .{v});
            const found = graph.list(@intCast(v));
            std.mem.sort(u32, found, {}, std.sort.asc(u32));
            std.mem.sort(u32, list.ids[0..list.len], {}, std.sort.asc(u32));
            try testing.expectEqualSlices(u32, list.ids[0..list.len], found);
            pruned += list.pruned;
        }
        try testing.expect(pruned > n); // by newcomers
    }
}

test "a candidate list agrees with sorting; a full visited set loses nothing that matters" {
    for (0..100) |seed| {
        errdefer std.debug.print("seed {}\n", .{seed});
        var prng = base.Prng.init(seed);
        var items: [20]Candidate = undefined;
        var list = search.CandidateList{ .items = &items };
        var all: [60]Candidate = undefined;
        for (&all, 0..) |*candidate, i| {
            candidate.* = .init(@floatFromInt(prng.below(10)), @intCast(i));
            _ = list.insert(candidate.*);
            if (prng.boolean()) try testing.expectEqual(null, list.insert(candidate.*));
        }
        std.sort.pdq(Candidate, &all, {}, Candidate.less);
        try testing.expectEqualSlices(Candidate, all[0..20], list.slice());
    }
    var slots: [16]u32 = undefined;
    var visited = search.VisitedSet{ .slots = &slots };
    visited.clear();
    for (0..12) |id| try testing.expect(visited.insert(@intCast(id)));
    for (0..12) |id| try testing.expect(!visited.insert(@intCast(id)));
    try testing.expect(visited.insert(99) and visited.insert(99)); // full: forgotten, not refused
}

test "a canceled build of several threads stops within one insertion of each and leaves nothing behind" {
    var points = try FloatDistances.gaussian(2000, 0, 8, 2);
    defer points.deinit();
    for ([_]i64{ 1, 2000, 60_000 }) |calls| {
        var flag: std.atomic.Value(bool) = .init(false);
        var left: std.atomic.Value(i64) = .init(calls);
        const distances = CancelingDistances{ .inner = &points, .n = points.n, .calls_left = &left, .flag = &flag };
        try testing.expectError(error.Canceled, vamana.build(CancelingDistances, testing.allocator, &distances, .{ .degree = 16, .list_size = 30, .threads = 2, .cancel = &flag }));
        try testing.expect(left.load(.monotonic) > -4000); // the medoid takes 1,024 calls, an insertion a few hundred
    }
}

test "every allocation may fail" {
    const run = struct {
        fn run(allocator: std.mem.Allocator, points: *const FloatDistances) !void {
            var graph = try vamana.build(FloatDistances, allocator, points, .{ .degree = 8, .list_size = 12 });
            graph.deinit(allocator);
        }
    }.run;
    var points = try FloatDistances.gaussian(60, 0, 3, 2);
    defer points.deinit();
    try testing.checkAllAllocationFailures(testing.allocator, run, .{&points});
}

test "threads do each piece once, whether they give way or not, and the caller stays as it was" {
    for ([_]u32{ 1, 2, 5 }) |threads| {
        for ([_]bool{ false, true }) |gives_way| {
            var pieces: Pieces = .{ .crew = .of(.{ .threads = threads, .gives_way = gives_way }) };
            try workers.run(pieces.crew, &pieces, Pieces.work);
            try pieces.expect_each_once();
            try testing.expectEqual(0, policy());
        }
    }
}

test "where nothing is left to threads that give way, their caller does the work" {
    var event: std.Thread.ResetEvent = .{};
    var pieces: Pieces = .{ .crew = .of(.{ .threads = 3, .gives_way = true }), .may_run = &event };
    try workers.run(pieces.crew, &pieces, Pieces.work);
    try pieces.expect_each_once();
}

test "one thread alone is the caller, and in shares threads are as the caller is" {
    try testing.expectEqual(1, Crew.of(.{ .threads = 1, .gives_way = true }).numbers());
    try testing.expectEqual(1, Crew.of(.{ .threads = 0, .gives_way = false }).numbers());
    try testing.expectEqual(3, Crew.of(.{ .threads = 2, .gives_way = true }).numbers());
    try testing.expectEqual(2, Crew.of(.{ .threads = 2, .gives_way = true }).in_shares().numbers());
}
