//! The delta's graph: walks against scans, whatever the data, and while it is made.
const std = @import("std");
const base = @import("base");
const delta_room = @import("delta.zig");
const linking = @import("link.zig");
const links_room = @import("links.zig");
const nearest = @import("nearest.zig");
const rows_payload = @import("rows.zig");
const scan = @import("scan.zig");
const View = @import("delta.zig").View;
const Walk = @import("link.zig").Walk;
const BitSet = base.BitSet;
const Delta = delta_room.Delta;
const Links = links_room.Links;
const allocator = std.testing.allocator;

/// A delta of made rows, and what a view of it has.
const World = struct {
    delta: *Delta,
    shape: scan.Shape,
    deleted: BitSet,
    records: []*delta_room.Record = undefined,
    rows: u32,
    prng: base.Prng,

    const Kind = enum { clusters, copies };

    fn init(shape: scan.Shape, rows: u32, kind: Kind, seed: u64) !World {
        var self: World = .{
            .delta = try .create(allocator),
            .shape = shape,
            .deleted = try .init(allocator, rows),
            .rows = rows,
            .prng = .init(seed),
        };
        const batch = 125;
        var done: u32 = 0;
        while (done < rows) : (done += batch) {
            const count = @min(batch, rows - done);
            const vectors = try allocator.alloc(u8, shape.row_bytes() * count);
            defer allocator.free(vectors);
            const ids = try allocator.alloc(i64, count);
            defer allocator.free(ids);
            for (ids, 0..) |*id, i| {
                id.* = @intCast(done + i);
                const values = try allocator.alloc(f32, shape.dim);
                defer allocator.free(values);
                const is_copy = kind == .copies and self.prng.boolean();
                if (is_copy) @memset(values, 60) else self.point(values);
                store(shape.dtype, values, vectors[i * shape.row_bytes() ..][0..shape.row_bytes()]);
            }
            const bytes = try rows_payload.encode(allocator, .{ .kind = .numbers, .ids = .{ .numbers = ids }, .vectors = vectors }, count);
            const record = try delta_room.Record.create(allocator, bytes, count);
            errdefer record.release(allocator);
            try self.delta.reserve(count);
            self.delta.append(record);
        }
        self.delta.show(@intCast(self.delta.records.items.len));
        self.records = self.delta.records.items;
        return self;
    }

    fn deinit(self: *World) void {
        self.deleted.deinit(allocator);
        self.delta.release();
    }

    /// Near one of eight corners, in 0..100.
    fn point(self: *World, out: []f32) void {
        const corner: u32 = @intCast(self.prng.below(8));
        for (out, 0..) |*x, i| {
            const middle: f32 = if ((corner >> @intCast(i % 3)) & 1 == 1) 65 else 35;
            x.* = middle + @as(f32, @floatFromInt(self.prng.below(60))) - 30;
        }
    }

    fn store(dtype: scan.Dtype, values: []const f32, out: []u8) void {
        switch (dtype) {
            .f32 => @memcpy(out, std.mem.sliceAsBytes(values)),
            .f16 => for (values, 0..) |x, i| std.mem.writeInt(u16, out[2 * i ..][0..2], @bitCast(@as(f16, @floatCast(x))), .little),
            .u8, .i8 => for (values, out) |x, *byte| {
                byte.* = @intFromFloat(x);
            },
        }
    }

    fn link(self: *World) void {
        linking.link(allocator, &self.delta.links, self.shape, self.rows + linking.tail_rows, self.rows);
    }

    fn alive(self: *const World) !BitSet {
        var set = try BitSet.init(allocator, self.rows);
        for (0..self.rows) |row| if (!self.deleted.contains(row)) set.insert(row);
        return set;
    }
};

fn share_found(walked: []const scan.Hit, scanned: []const scan.Hit) f64 {
    const bound = scanned[scanned.len - 1].distance;
    var found: usize = 0;
    for (walked[0..@min(walked.len, scanned.len)]) |hit| found += @intFromBool(hit.distance <= bound);
    return @as(f64, @floatFromInt(found)) / @as(f64, @floatFromInt(scanned.len));
}

test "walks find what scans find, of every metric, type and share of dead rows" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed {d}\n", .{seed});
    for (std.enums.values(scan.Metric)) |metric| for (std.enums.values(scan.Dtype)) |dtype| for (std.enums.values(World.Kind)) |kind| {
        errdefer std.debug.print("{t} {t} {t}\n", .{ metric, dtype, kind });
        var world = try World.init(.{ .dim = 12, .metric = metric, .dtype = dtype }, 500, kind, seed);
        defer world.deinit();
        world.link();
        try std.testing.expectEqual(500, world.delta.links.linked.raw);
        var walk = try Walk.init(allocator, &world.delta.links, world.shape, world.rows, world.rows, 100);
        defer walk.deinit();
        for ([_]u64{ 0, 50, 90 }) |deleted_percent| {
            for (0..world.rows) |row| if (world.prng.below(100) < deleted_percent) world.deleted.insert(row);
            var alive = try world.alive();
            defer alive.deinit(allocator);
            var found: f64 = 0;
            const queries = 20;
            for (0..queries) |_| {
                var values: [12]f32 = undefined;
                world.point(&values);
                var hits: [10]scan.Hit = undefined;
                var asked = [1]scan.Asked{.{ .point = .of(metric, &values), .passing = alive, .from = 0, .nearest = .{ .hits = &hits } }};
                scan.scan(world.shape, world.records, world.rows, &asked);
                var walked_hits: [10]scan.Hit = undefined;
                var walked_nearest: scan.Nearest = .{ .hits = &walked_hits };
                try std.testing.expect(try walk.offer_to(&walked_nearest, asked[0].point, 100, alive, .{}));
                const walked = walked_nearest.sorted();
                try std.testing.expectEqual(10, walked.len);
                for (walked, 0..) |hit, i| {
                    try std.testing.expect(alive.contains(hit.row));
                    if (i > 0) try std.testing.expect(hit.farther(walked[i - 1]));
                }
                found += share_found(walked, asked[0].nearest.sorted());
            }
            try std.testing.expect(found / queries > 0.97);
        }
    };
}

test "every row that is linked can be reached from the first, and is found by its own vector" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed {d}\n", .{seed});
    for (std.enums.values(scan.Metric)) |metric| for (std.enums.values(World.Kind)) |kind| {
        errdefer std.debug.print("{t} {t}\n", .{ metric, kind });
        var world = try World.init(.{ .dim = 3, .metric = metric, .dtype = .f32 }, 1200, kind, seed);
        defer world.deinit();
        world.link();
        const links = &world.delta.links;
        var reached = try BitSet.init(allocator, world.rows);
        defer reached.deinit(allocator);
        var waiting: std.ArrayList(u32) = .empty;
        defer waiting.deinit(allocator);
        reached.insert(0);
        try waiting.append(allocator, 0);
        while (waiting.pop()) |row| {
            var buffer: [links_room.degree]u32 = undefined;
            for (links.neighbors(row, &buffer)) |neighbor| {
                if (reached.insert_new(neighbor)) try waiting.append(allocator, neighbor);
            }
            if (links.copy_after(row)) |copy| if (reached.insert_new(copy)) try waiting.append(allocator, copy);
        }
        try std.testing.expectEqual(world.rows, reached.count());
        if (metric != .l2) continue;
        var walk = try Walk.init(allocator, links, world.shape, world.rows, world.rows, 48);
        defer walk.deinit();
        for (0..world.rows) |row| {
            const vector: [*]const f32 = @ptrCast(@alignCast(links.vector(@intCast(row))));
            const found = (try walk.run(.of(metric, vector[0..3]), 48, null, .{})).?;
            try std.testing.expectEqual(0, found[0].distance);
        }
    };
}

test "a search walks where that takes less, looks at every row where it must, and never beyond its view" {
    var world = try World.init(.{ .dim = 4, .metric = .l2, .dtype = .u8 }, 8000, .clusters, 3);
    defer world.deinit();
    world.link();
    const seen = 7500;
    var deleted = try BitSet.init(allocator, seen);
    defer deleted.deinit(allocator);
    for (0..seen / 10) |i| deleted.insert(10 * i);
    var view: View = undefined;
    view.shape = world.shape;
    view.rows = seen;
    view.deleted = deleted;
    view.records = world.records[0 .. seen / 125];
    view.delta = world.delta;
    var few = try BitSet.init(allocator, seen);
    defer few.deinit(allocator);
    for (0..100) |i| few.insert(70 * i + 1);
    var half = try BitSet.init(allocator, seen);
    defer half.deinit(allocator);
    for (0..seen / 2) |i| half.insert(2 * i + 1);
    const Case = struct { recall: f32, passing: ?BitSet, visits_least: u32, visits_most: u32 };
    for ([_]Case{
        .{ .recall = 1, .passing = null, .visits_least = 6750, .visits_most = 6750 },
        .{ .recall = 0.99, .passing = null, .visits_least = 10, .visits_most = 4000 },
        .{ .recall = 0.99, .passing = half, .visits_least = 10, .visits_most = 4000 },
        .{ .recall = 0.99, .passing = few, .visits_least = 100, .visits_most = 100 },
    }) |case| {
        var found: f64 = 0;
        for (0..20) |_| {
            var values: [4]f32 = undefined;
            world.point(&values);
            var hits: [2][10]scan.Hit = undefined;
            var counts: [2][1]u32 = undefined;
            var visits: [2][1]u32 = undefined;
            for ([_]f32{ case.recall, 1 }, 0..) |recall, i|
                try nearest.search(allocator, &view, &values, .{ .k = 10, .recall = recall, .passing = &.{case.passing} }, &hits[i], &counts[i], &visits[i]);
            try std.testing.expectEqual([2][1]u32{ .{10}, .{10} }, counts);
            for (hits[0]) |hit| try std.testing.expect(hit.row < seen and !deleted.contains(hit.row) and (case.passing == null or case.passing.?.contains(hit.row)));
            try std.testing.expect(visits[0][0] >= case.visits_least and visits[0][0] <= case.visits_most);
            found += share_found(&hits[0], &hits[1]);
        }
        try std.testing.expect(found >= 0.97 * 20);
    }
}

test "within what is known elsewhere a search finds the same and looks at fewer rows" {
    var world = try World.init(.{ .dim = 4, .metric = .l2, .dtype = .u8 }, 8000, .clusters, 5);
    defer world.deinit();
    world.link();
    var view: View = undefined;
    view.shape = world.shape;
    view.rows = world.rows;
    view.deleted = world.deleted;
    view.records = world.records;
    view.delta = world.delta;
    var question: nearest.Question = undefined;
    try question.init(allocator, &view, .{ .k = 10, .recall = 0.99, .passing = &.{} }, 1);
    defer question.deinit();
    var found: f64 = 0;
    var visits: [2]u64 = .{ 0, 0 };
    const queries = 100;
    for (0..queries) |_| {
        var values: [4]f32 = undefined;
        world.point(&values);
        var all: [10]scan.Hit = undefined;
        var counts: [1]u32 = undefined;
        var looked: [1]u32 = undefined;
        try nearest.search(allocator, &view, &values, .{ .k = 10, .recall = 1, .passing = &.{} }, &all, &counts, &looked);
        var hits: [10]scan.Hit = undefined;
        visits[0] += question.answer(0, &values, std.math.inf(f32), &hits).visits;
        // The third nearest lies elsewhere: the rest is not wanted, and nothing of it is given.
        const within = all[3].distance;
        const answer = question.answer(0, &values, within, &hits);
        visits[1] += answer.visits;
        for (hits[0..answer.count]) |hit| try std.testing.expect(hit.distance <= within);
        found += share_found(hits[0..answer.count], all[0..3]);
        try std.testing.expectEqual(0, question.answer(0, &values, -1, &hits).count);
    }
    try std.testing.expect(found >= 0.97 * queries);
    try std.testing.expect(4 * visits[1] < 3 * visits[0]);
}

test "threads walk over rows while another links some" {
    var world = try World.init(.{ .dim = 8, .metric = .cosine, .dtype = .f32 }, 1500, .copies, 11);
    defer world.deinit();
    const Reader = struct {
        fn run(links: *const Links, shape: scan.Shape, records: []const *delta_room.Record, ended: *const std.atomic.Value(bool), failed: *std.atomic.Value(bool), seed: u64) void {
            walk_on(links, shape, records, ended, seed) catch failed.store(true, .monotonic);
        }

        fn walk_on(links: *const Links, shape: scan.Shape, records: []const *delta_room.Record, ended: *const std.atomic.Value(bool), seed: u64) !void {
            var prng = base.Prng.init(seed);
            while (!ended.load(.acquire)) {
                const rows = links.linked.load(.acquire);
                if (rows == 0) continue;
                var walk = try Walk.init(std.heap.c_allocator, links, shape, rows, rows, 48);
                defer walk.deinit();
                const row: u32 = @intCast(prng.below(rows));
                const bytes = records[row / 125].rows.vectors[row % 125 * shape.row_bytes() ..];
                const vector: [*]const f32 = @ptrCast(@alignCast(bytes.ptr));
                var hits: [48]scan.Hit = undefined;
                var out: scan.Nearest = .{ .hits = &hits };
                if (!try walk.offer_to(&out, .of(shape.metric, vector[0..shape.dim]), 48, null, .{})) return error.Missed;
                const found = out.sorted();
                if (found.len < @min(rows, 48) or found[0].distance > 1e-6) return error.Missed;
                for (found) |hit| if (hit.row >= rows) return error.Unlinked;
            }
        }
    };
    var ended: std.atomic.Value(bool) = .init(false);
    var failed: std.atomic.Value(bool) = .init(false);
    var threads: [3]std.Thread = undefined;
    for (&threads, 0..) |*thread, i|
        thread.* = try std.Thread.spawn(.{}, Reader.run, .{ &world.delta.links, world.shape, world.records, &ended, &failed, i });
    // In steps, and by two at a time: one of them links, the other goes on with its own.
    const other = try std.Thread.spawn(.{}, struct {
        fn run(of: *World) void {
            for (0..40) |_| linking.link(std.heap.c_allocator, &of.delta.links, of.shape, of.rows + linking.tail_rows, 50);
        }
    }.run, .{&world});
    while (world.delta.links.linked.load(.monotonic) < world.rows) linking.link(std.heap.c_allocator, &world.delta.links, world.shape, world.rows + linking.tail_rows, 100);
    other.join();
    ended.store(true, .release);
    for (threads) |thread| thread.join();
    try std.testing.expect(!failed.load(.monotonic));
}

test "neighbors take what the delta counts for them, and where memory is short rows stay unlinked" {
    var counter = std.testing.FailingAllocator.init(allocator, .{});
    var links: Links = .{};
    defer links.deinit(counter.allocator());
    const rows = 40_000;
    var room: u32 = 0;
    while (room < rows) : (room += 1000) try links.reserve(counter.allocator(), room + 1000);
    try std.testing.expect(counter.allocated_bytes <= links_room.row_bytes * (rows + 256) + 8192);

    var world = try World.init(.{ .dim = 2, .metric = .l2, .dtype = .i8 }, 500, .clusters, 1);
    defer world.deinit();
    for (0..20) |index| {
        var failing = std.testing.FailingAllocator.init(allocator, .{ .fail_index = index });
        linking.link(failing.allocator(), &world.delta.links, world.shape, world.rows + linking.tail_rows, 20);
    }
    world.link();
    try std.testing.expectEqual(500, world.delta.links.linked.raw);
}
