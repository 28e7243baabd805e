//! Placement, colors, entry points: what must hold for any input, and what must be good on inputs with a known answer.
const std = @import("std");
const connectivity = @import("connect.zig");
const placement_room = @import("placement.zig");
const types = @import("types.zig");
const vamana = @import("vamana.zig");
const testing = std.testing;
const base = @import("base");

const Graph = types.Graph;
const Placement = types.Placement;
const arrange = @import("arrange.zig").arrange;
const oracle = @import("testing.zig");
const FloatDistances = oracle.FloatDistances;

const Placed = struct {
    points: FloatDistances,
    graph: Graph,
    bytes: []u16,
    placement: Placement,

    fn init(points: FloatDistances, record_bytes_min: u16, spread: u16, budget: u32, threads: u32) !Placed {
        var graph = try vamana.build(FloatDistances, testing.allocator, &points, .{ .degree = 16, .list_size = 32, .seed = 1 });
        errdefer graph.deinit(testing.allocator);
        const bytes = try testing.allocator.alloc(u16, points.n);
        errdefer testing.allocator.free(bytes);
        var prng = base.Prng.init(points.n);
        for (bytes) |*size| size.* = record_bytes_min + @as(u16, @intCast(prng.below(spread + 1)));
        const placement = try placement_room.place(FloatDistances, testing.allocator, &points, &graph, .{ .page_bytes_budget = budget, .record_bytes = bytes, .threads = threads, .gives_way = threads == 2 });
        return .{ .points = points, .graph = graph, .bytes = bytes, .placement = placement };
    }

    fn deinit(self: *Placed) void {
        self.placement.deinit(testing.allocator);
        testing.allocator.free(self.bytes);
        self.graph.deinit(testing.allocator);
        self.points.deinit();
    }

    /// Every vertex once, pages in order, none over its budget unless it holds a single record.
    fn expect_sound(self: *const Placed, budget: u32) !void {
        const seen = try testing.allocator.alloc(bool, self.points.n);
        defer testing.allocator.free(seen);
        @memset(seen, false);
        try testing.expectEqual(self.points.n, self.placement.order.len);
        for (self.placement.order) |old| {
            try testing.expect(!seen[old]);
            seen[old] = true;
        }
        var expected: u32 = 0;
        for (0..self.placement.page_first.len) |index| {
            const page = self.placement.page(index);
            try testing.expectEqual(expected, page.from);
            try testing.expect(page.to > page.from);
            expected = page.to;
            var sum: u32 = 0;
            for (self.placement.order[page.from..page.to]) |old| sum += self.bytes[old];
            try testing.expect(sum <= budget or page.to - page.from == 1);
        }
        try testing.expectEqual(self.points.n, expected);
    }

    fn page_of(self: *const Placed) ![]u32 {
        const pages = try testing.allocator.alloc(u32, self.points.n);
        for (0..self.placement.page_first.len) |index| {
            const page = self.placement.page(index);
            for (self.placement.order[page.from..page.to]) |old| pages[old] = @intCast(index);
        }
        return pages;
    }
};

test "every vertex has one place and no page is over its budget, with any number of threads" {
    for ([_]u32{ 1, 2, 3, 17, 1500 }) |n| {
        for ([_]u32{ 1, 2, 3 }) |threads| {
            errdefer std.debug.print("n {} threads {}\n", .{ n, threads });
            var placed = try Placed.init(try FloatDistances.gaussian(n, 0, 5, n), 50, 100, 1000, threads);
            defer placed.deinit();
            try placed.expect_sound(1000);
            // Records of 50 to 150 bytes: a page that is given up has less than 150 bytes left, so at least 850 used.
            try testing.expect(placed.placement.page_first.len <= @as(usize, n) * 100 / 800 + threads + 1);
        }
    }
}

test "no vertices make no pages; a record larger than a page has one to itself" {
    var none = try Placed.init(try FloatDistances.gaussian(0, 0, 3, 0), 10, 0, 100, 1);
    defer none.deinit();
    try testing.expectEqual(0, none.placement.page_first.len);
    var large = try Placed.init(try FloatDistances.gaussian(30, 0, 3, 1), 500, 0, 100, 1);
    defer large.deinit();
    try large.expect_sound(100);
    try testing.expectEqual(30, large.placement.page_first.len);
}

test "clusters the size of a page become pages" {
    const clusters = 60;
    const members = 20;
    var placed = try Placed.init(try FloatDistances.clustered(clusters * members, clusters, 8, 3), 100, 0, 100 * members, 1);
    defer placed.deinit();
    try placed.expect_sound(100 * members);
    const pages = try placed.page_of();
    defer testing.allocator.free(pages);
    var whole: u32 = 0;
    for (0..clusters) |cluster| {
        const together = for (1..members) |i| {
            if (pages[cluster + i * clusters] != pages[cluster]) break false;
        } else true;
        whole += @intFromBool(together);
    }
    errdefer std.debug.print("{} of {} whole\n", .{ whole, clusters });
    try testing.expect(whole >= clusters * 9 / 10);
}

test "exchanges bring together what filling left apart" {
    var points = try FloatDistances.gaussian(3000, 0, 6, 22);
    defer points.deinit();
    var graph = try vamana.build(FloatDistances, testing.allocator, &points, .{ .degree = 16, .list_size = 32, .seed = 1 });
    defer graph.deinit(testing.allocator);
    const bytes = try testing.allocator.alloc(u16, points.n);
    defer testing.allocator.free(bytes);
    var prng = base.Prng.init(22);
    for (bytes) |*size| size.* = 90 + @as(u16, @intCast(prng.below(21)));
    var neighbors_together: [2]u32 = undefined;
    var pages: [2]usize = undefined;
    for ([_]bool{ true, false }, 0..) |draft, i| {
        var placement = try placement_room.place(FloatDistances, testing.allocator, &points, &graph, .{ .page_bytes_budget = 3000, .record_bytes = bytes, .draft = draft });
        defer placement.deinit(testing.allocator);
        const placed: Placed = .{ .points = points, .graph = graph, .bytes = bytes, .placement = placement };
        try placed.expect_sound(3000);
        const page_of = try placed.page_of();
        defer testing.allocator.free(page_of);
        pages[i] = placement.page_first.len;
        neighbors_together[i] = 0;
        for (0..points.n / 4) |v| {
            var nearest: [5]u32 = undefined;
            points.nearest(@intCast(v * 4), &nearest);
            for (nearest) |other| neighbors_together[i] += @intFromBool(page_of[other] == page_of[v * 4]);
        }
    }
    errdefer std.debug.print("together {any} pages {any}\n", .{ neighbors_together, pages });
    try testing.expectEqual(pages[0], pages[1]);
    try testing.expect(neighbors_together[1] * 100 > neighbors_together[0] * 102);
}

test "the nearest lie on few pages and near in ids" {
    var placed = try Placed.init(try FloatDistances.gaussian(3000, 0, 6, 21), 100, 0, 3000, 2);
    defer placed.deinit();
    const pages = try placed.page_of();
    defer testing.allocator.free(pages);
    const new_ids = try placed.placement.inverse(testing.allocator);
    defer testing.allocator.free(new_ids);
    var distinct: u32 = 0;
    var near: u32 = 0;
    for (0..300) |i| {
        const vertex: u32 = @intCast(i * 10);
        var nearest: [10]u32 = undefined;
        placed.points.nearest(vertex, &nearest);
        for (nearest, 0..) |neighbor, at| {
            const repeated = for (nearest[0..at]) |earlier| {
                if (pages[earlier] == pages[neighbor]) break true;
            } else false;
            distinct += @intFromBool(!repeated);
            near += @intFromBool(@abs(@as(i64, new_ids[neighbor]) - new_ids[vertex]) < 300);
        }
    }
    // Unordered ids put ten vertices on 9.6 of 100 pages, and one in five within 300 ids.
    errdefer std.debug.print("{d} pages, {d} near\n", .{ @as(f64, @floatFromInt(distinct)) / 300, @as(f64, @floatFromInt(near)) / 3000 });
    try testing.expect(distinct < 300 * 55 / 10);
    try testing.expect(near > 3000 * 4 / 10);
}

test "one thread gives one placement" {
    var first = try Placed.init(try FloatDistances.gaussian(1200, 0, 6, 2), 60, 20, 900, 1);
    defer first.deinit();
    var second = try Placed.init(try FloatDistances.gaussian(1200, 0, 6, 2), 60, 20, 900, 1);
    defer second.deinit();
    try testing.expectEqualSlices(u32, first.placement.order, second.placement.order);
    try testing.expectEqualSlices(u32, first.placement.page_first, second.placement.page_first);
}

test "identical vectors fill pages" {
    var placed = try Placed.init(try FloatDistances.identical(2000, 4), 100, 0, 1000, 2);
    defer placed.deinit();
    try placed.expect_sound(1000);
    try testing.expect(placed.placement.page_first.len <= 202);
}

test "remap renames every edge and keeps its rank" {
    for ([_]u32{ 1, 2, 800 }) |n| {
        var placed = try Placed.init(try FloatDistances.gaussian(n, 0, 4, 5), 60, 20, 900, 1);
        defer placed.deinit();
        var renamed = Graph{
            .n = n,
            .degree_max = placed.graph.degree_max,
            .neighbors = try testing.allocator.dupe(u32, placed.graph.neighbors),
            .degrees = try testing.allocator.dupe(u16, placed.graph.degrees),
            .entry = placed.graph.entry,
        };
        defer renamed.deinit(testing.allocator);
        try placement_room.remap(testing.allocator, &renamed, &placed.placement);
        const new_ids = try placed.placement.inverse(testing.allocator);
        defer testing.allocator.free(new_ids);
        try testing.expectEqual(new_ids[placed.graph.entry], renamed.entry);
        for (0..n) |old| {
            const before = placed.graph.list(@intCast(old));
            const after = renamed.list(new_ids[old]);
            try testing.expectEqual(before.len, after.len);
            for (before, after) |a, b| try testing.expectEqual(new_ids[a], b);
        }
    }
}

test "records share a color when they are within the threshold of its first record" {
    var placed = try Placed.init(try FloatDistances.gaussian(900, 0, 3, 31), 100, 0, 3000, 1);
    defer placed.deinit();
    const order = placed.placement.order;
    const threshold: f32 = 0.4;
    const colors = try placement_room.color(FloatDistances, testing.allocator, &placed.points, &placed.placement, threshold);
    defer testing.allocator.free(colors);
    var colored: u32 = 0;
    for (0..placed.placement.page_first.len) |index| {
        const page = placed.placement.page(index);
        for (page.from..page.to) |record| {
            colored += @intFromBool(colors[record] != 0);
            // The first record of its color on the page; a record without a color counts as its own.
            const leader = for (page.from..record) |earlier| {
                if (colors[record] != 0 and colors[earlier] == colors[record]) break earlier;
            } else record;
            if (leader != record) try testing.expect(placed.points.distance(order[leader], order[record]) <= threshold);
            if (colors[record] == 0) for (record + 1..page.to) |later| {
                if (colors[later] == 0) try testing.expect(placed.points.distance(order[record], order[later]) > threshold);
            };
        }
    }
    try testing.expect(colored > 90 and colored < 900);
    const none = try placement_room.color(FloatDistances, testing.allocator, &placed.points, &placed.placement, -1);
    defer testing.allocator.free(none);
    for (none) |tag| try testing.expectEqual(0, tag);
}

test "the affinity threshold lies below what lies in a cluster on average" {
    // Clusters of a standard normal in 8 dimensions: 5 % lie within 2.7 (squared) of the centroid, half within 7.3.
    var points = try FloatDistances.clustered(4000, 16, 8, 17);
    defer points.deinit();
    const threshold = try placement_room.affinity_threshold(FloatDistances, testing.allocator, &points, points.n, 5, 3);
    errdefer std.debug.print("threshold {d}\n", .{threshold});
    try testing.expect(threshold > 1 and threshold < 7.3);
    const wider = try placement_room.affinity_threshold(FloatDistances, testing.allocator, &points, points.n, 40, 3);
    try testing.expect(wider > threshold);
    for ([_]u32{ 0, 1, 2, 30 }) |n| {
        var few = try FloatDistances.gaussian(n, 0, 3, n);
        defer few.deinit();
        const small = try placement_room.affinity_threshold(FloatDistances, testing.allocator, &few, n, 5, 3);
        try testing.expect(small >= 0 and small < 20);
    }
}

test "entry points are distinct, ascending, spread evenly, and the same for a seed" {
    for ([_][2]u32{ .{ 0, 5 }, .{ 1, 5 }, .{ 5, 5 }, .{ 1000, 7 }, .{ 1000, 999 } }) |case| {
        const points = try connectivity.entry_points(testing.allocator, case[0], case[1], 4);
        defer testing.allocator.free(points);
        try testing.expectEqual(@min(case[0], case[1]), points.len);
        for (points, 0..) |point, i| {
            try testing.expect(point >= @as(u64, case[0]) * i / points.len);
            try testing.expect(point < @as(u64, case[0]) * (i + 1) / points.len);
        }
        const again = try connectivity.entry_points(testing.allocator, case[0], case[1], 4);
        defer testing.allocator.free(again);
        try testing.expectEqualSlices(u32, points, again);
    }
    try testing.expectEqual(2000, connectivity.entry_count(1_000_000));
    try testing.expectEqual(1, connectivity.entry_count(1));
    try testing.expectEqual(0, connectivity.entry_count(0));
}

test "placement stops when canceled, and every allocation may fail" {
    var points = try FloatDistances.gaussian(200, 0, 4, 2);
    defer points.deinit();
    var graph = try vamana.build(FloatDistances, testing.allocator, &points, .{ .degree = 8, .list_size = 16 });
    defer graph.deinit(testing.allocator);
    const bytes: [200]u16 = @splat(100);
    var flag: std.atomic.Value(bool) = .init(true);
    try testing.expectError(error.Canceled, placement_room.place(FloatDistances, testing.allocator, &points, &graph, .{ .page_bytes_budget = 1000, .record_bytes = &bytes, .cancel = &flag }));
    // One thread: with more, which of them allocates what depends on their speed, and the count must not.
    const run = struct {
        fn run(allocator: std.mem.Allocator, p: *const FloatDistances, g: *const Graph, sizes: []const u16) !void {
            var placement = try placement_room.place(FloatDistances, allocator, p, g, .{ .page_bytes_budget = 1000, .record_bytes = sizes });
            defer placement.deinit(allocator);
            const colors = try placement_room.color(FloatDistances, allocator, p, &placement, 1);
            defer allocator.free(colors);
            _ = try placement_room.affinity_threshold(FloatDistances, allocator, p, p.n, 5, 1);
        }
    }.run;
    try testing.checkAllAllocationFailures(testing.allocator, run, .{ &points, &graph, &bytes });
}

test "arranging moves pages, not records, and brings linked pages together" {
    const side = 48;
    const cell = 4; // a page is a square of 4 x 4 points
    var points = try FloatDistances.grid(side);
    defer points.deinit();
    var graph = try vamana.build(FloatDistances, testing.allocator, &points, .{ .degree = 12, .list_size = 24 });
    defer graph.deinit(testing.allocator);
    const pages = side * side / (cell * cell);
    var shuffled: [pages]u32 = undefined;
    for (&shuffled, 0..) |*page, i| page.* = @intCast(i);
    var prng = base.Prng.init(77);
    prng.shuffle(u32, &shuffled);
    var placement = Placement{
        .order = try testing.allocator.alloc(u32, points.n),
        .page_first = try testing.allocator.alloc(u32, pages),
    };
    defer placement.deinit(testing.allocator);
    for (shuffled, placement.page_first, 0..) |page, *first, i| {
        first.* = @intCast(i * cell * cell);
        const x = page % (side / cell) * cell;
        const y = page / (side / cell) * cell;
        for (placement.order[first.*..][0 .. cell * cell], 0..) |*vertex, k| vertex.* = @intCast((y + k / cell) * side + x + k % cell);
    }
    const before = try log_distance(&graph, &placement);
    const first_page = placement.order[0..16].*;
    try arrange(testing.allocator, &graph, &placement, null);
    const after = try log_distance(&graph, &placement);
    errdefer std.debug.print("{d} to {d} bits\n", .{ before, after });
    try testing.expect(after < before - 0.4); // most edges stay on a page and cannot get shorter
    const moved_to = std.mem.indexOfScalar(u32, placement.order, first_page[0]).?;
    try testing.expectEqualSlices(u32, &first_page, placement.order[moved_to..][0..16]);
    try testing.expect(std.mem.indexOfScalar(u32, placement.page_first, @intCast(moved_to)) != null);
    const sorted = try testing.allocator.dupe(u32, placement.order);
    defer testing.allocator.free(sorted);
    std.mem.sort(u32, sorted, {}, std.sort.asc(u32));
    for (sorted, 0..) |vertex, i| try testing.expectEqual(i, vertex);
}

/// Bits of the distance in new ids, averaged over all edges.
fn log_distance(graph: *const Graph, placement: *const Placement) !f64 {
    const new_ids = try placement.inverse(testing.allocator);
    defer testing.allocator.free(new_ids);
    var sum: f64 = 0;
    var edges: f64 = 0;
    for (0..graph.n) |v| for (graph.list(@intCast(v))) |neighbor| {
        sum += @log2(@as(f64, @floatFromInt(@abs(@as(i64, new_ids[v]) - new_ids[neighbor]))));
        edges += 1;
    };
    return sum / edges;
}
