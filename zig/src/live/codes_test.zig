//! Estimates of the delta's rows against looks at all of them, whatever the data, and while rows are coded.
const std = @import("std");
const base = @import("base");
const codes_file = @import("codes.zig");
const delta_room = @import("delta.zig");
const nearest = @import("nearest.zig");
const rows_payload = @import("rows.zig");
const scan = @import("scan.zig");
const BitSet = base.BitSet;
const Codes = codes_file.Codes;
const Delta = delta_room.Delta;
const View = delta_room.View;
const allocator = std.testing.allocator;

/// A delta of made rows, and what a view of it has.
const World = struct {
    delta: *Delta,
    shape: scan.Shape,
    deleted: BitSet,
    records: []*delta_room.Record = undefined,
    rows: u32,
    kind: Kind,
    prng: base.Prng,

    /// far: close together, a long way from the origin and from the first rows. huge: squares of distances leave float32 nearly.
    const Kind = enum { clusters, copies, far, huge };

    const batch = 125;

    fn init(shape: scan.Shape, rows: u32, kind: Kind, seed: u64) !World {
        var self: World = .{
            .delta = try .create(allocator),
            .shape = shape,
            .deleted = try .init(allocator, rows),
            .rows = rows,
            .kind = kind,
            .prng = .init(seed),
        };
        var done: u32 = 0;
        while (done < rows) : (done += batch) {
            const count = @min(batch, rows - done);
            const vectors = try allocator.alloc(u8, shape.row_bytes() * count);
            defer allocator.free(vectors);
            const ids = try allocator.alloc(i64, count);
            defer allocator.free(ids);
            const values = try allocator.alloc(f32, shape.dim);
            defer allocator.free(values);
            for (ids, 0..) |*id, i| {
                id.* = @intCast(done + i);
                const is_copy = kind == .copies and self.prng.boolean();
                if (is_copy) @memset(values, 60) else self.point(values);
                if (kind == .far and done < rows / 4) for (values) |*x| {
                    x.* = 5;
                };
                store(shape.dtype, values, vectors[i * shape.row_bytes() ..][0..shape.row_bytes()]);
            }
            const bytes = try rows_payload.encode(allocator, .{ .kind = .numbers, .ids = .{ .numbers = ids }, .vectors = vectors }, count);
            const record = try delta_room.Record.create(allocator, bytes, count);
            errdefer record.release(allocator);
            try self.delta.reserve(count, shape.dim);
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
        const is_fine = self.shape.dtype == .f32;
        for (out, 0..) |*x, i| {
            const middle: f32 = if ((corner >> @intCast(i % 3)) & 1 == 1) 65 else 35;
            x.* = switch (self.kind) {
                .clusters, .copies => middle + @as(f32, @floatFromInt(self.prng.below(60))) - 30,
                .far => 90 + @as(f32, @floatFromInt(self.prng.below(3))) + if (is_fine) 1e-3 * self.prng.gaussian() else 0,
                .huge => if (is_fine) 1e15 * self.prng.gaussian() else @floatFromInt(self.prng.below(100)),
            };
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

    fn code(self: *World) void {
        codes_file.code(allocator, &self.delta.codes, self.shape, self.rows, self.rows);
    }

    /// Of the first so many rows.
    fn view(self: *const World, rows: u32, deleted: BitSet) View {
        var made: View = undefined;
        made.shape = self.shape;
        made.rows = rows;
        made.deleted = deleted;
        made.records = self.records[0 .. rows / batch];
        made.delta = self.delta;
        return made;
    }
};

fn share_found(found: []const scan.Hit, all: []const scan.Hit) f64 {
    const bound = all[all.len - 1].distance;
    var count: usize = 0;
    for (found[0..@min(found.len, all.len)]) |hit| count += @intFromBool(hit.distance <= bound);
    return @as(f64, @floatFromInt(count)) / @as(f64, @floatFromInt(all.len));
}

test "estimates find what a look at all rows finds, of every metric, type, dimension and share of dead rows" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed {d}\n", .{seed});
    for (std.enums.values(scan.Metric)) |metric| for (std.enums.values(scan.Dtype)) |dtype| for (std.enums.values(World.Kind)) |kind| for ([_]u32{ 1, 12, 48 }) |dim| {
        errdefer std.debug.print("{t} {t} {t} {d}\n", .{ metric, dtype, kind, dim });
        var world = try World.init(.{ .dim = dim, .metric = metric, .dtype = dtype }, 1125, kind, seed);
        defer world.deinit();
        world.code();
        try std.testing.expectEqual(1024, world.delta.codes.coded.raw);
        for ([_]u64{ 0, 50, 95 }) |deleted_percent| {
            for (0..world.rows) |row| if (world.prng.below(100) < deleted_percent) world.deleted.insert(row);
            const view = world.view(world.rows, world.deleted);
            const queries = 8;
            var values: [queries * 48]f32 = undefined;
            world.point(values[0 .. queries * dim]);
            var hits: [2][queries * 10]scan.Hit = undefined;
            var counts: [2][queries]u32 = undefined;
            var looks: [2][queries]u32 = undefined;
            for ([_]f32{ 0.9, 1 }, 0..) |recall, i|
                try nearest.search(allocator, &view, values[0 .. queries * dim], .{ .k = 10, .recall = recall, .passing = &.{} }, &hits[i], &counts[i], &looks[i]);
            try std.testing.expectEqual(counts[1], counts[0]);
            var found: f64 = 0;
            for (0..queries) |q| {
                const some = hits[0][q * 10 ..][0..counts[0][q]];
                for (some, 0..) |hit, i| {
                    try std.testing.expect(!world.deleted.contains(hit.row));
                    if (i > 0) try std.testing.expect(hit.farther(some[i - 1]));
                }
                found += share_found(some, hits[1][q * 10 ..][0..counts[1][q]]);
            }
            try std.testing.expect(found >= 0.99 * queries);
        }
    };
}

test "every row is found by its own vector" {
    for ([_]u32{ 2, 16, 100 }) |dim| for (std.enums.values(World.Kind)) |kind| {
        var world = try World.init(.{ .dim = dim, .metric = .l2, .dtype = .f32 }, 1250, kind, 17);
        defer world.deinit();
        world.code();
        const view = world.view(world.rows, world.deleted);
        var question: nearest.Question = undefined;
        try question.init(allocator, &view, .{ .k = 3, .recall = 0.9, .passing = &.{} }, 1);
        defer question.deinit();
        for (0..world.rows) |row| {
            const bytes = world.records[row / World.batch].rows.vectors[row % World.batch * world.shape.row_bytes() ..];
            const vector: [*]const f32 = @ptrCast(@alignCast(bytes.ptr));
            var hits: [3]scan.Hit = undefined;
            for ([_]f32{ std.math.inf(f32), 0 }) |within| {
                try std.testing.expect(question.answer(0, vector[0..dim], within, &hits).count > 0);
                try std.testing.expectEqual(0, hits[0].distance);
            }
        }
    };
}

test "a search stays within its view, its filter and what is known elsewhere, and measures all rows where it must" {
    var world = try World.init(.{ .dim = 4, .metric = .l2, .dtype = .u8 }, 8000, .clusters, 3);
    defer world.deinit();
    world.code();
    const seen = 7500;
    var deleted = try BitSet.init(allocator, seen);
    defer deleted.deinit(allocator);
    for (0..seen / 10) |i| deleted.insert(10 * i);
    const view = world.view(seen, deleted);
    var few = try BitSet.init(allocator, seen);
    defer few.deinit(allocator);
    for (0..100) |i| few.insert(70 * i + 1);
    var half = try BitSet.init(allocator, seen);
    defer half.deinit(allocator);
    for (0..seen / 2) |i| half.insert(2 * i + 1);
    for ([_]?BitSet{ null, half, few }) |passing| {
        var question: nearest.Question = undefined;
        try question.init(allocator, &view, .{ .k = 10, .recall = 0.99, .passing = &.{passing} }, 1);
        defer question.deinit();
        try std.testing.expectEqual(29 * codes_file.chunk_rows, question.coded);
        var found: [2]f64 = .{ 0, 0 };
        const queries = 50;
        for (0..queries) |_| {
            var values: [4]f32 = undefined;
            world.point(&values);
            var all: [10]scan.Hit = undefined;
            var counts: [1]u32 = undefined;
            var looks: [1]u32 = undefined;
            try nearest.search(allocator, &view, &values, .{ .k = 10, .recall = 1, .passing = &.{passing} }, &all, &counts, &looks);
            var hits: [10]scan.Hit = undefined;
            var answer = question.answer(0, &values, std.math.inf(f32), &hits);
            for (hits[0..answer.count]) |hit| try std.testing.expect(hit.row < seen and !deleted.contains(hit.row) and (passing == null or passing.?.contains(hit.row)));
            try std.testing.expectEqual(looks[0], answer.visits);
            found[0] += share_found(hits[0..answer.count], &all);
            // The third nearest lies elsewhere: the rest is not wanted, and nothing of it is given.
            const within = all[2].distance;
            answer = question.answer(0, &values, within, &hits);
            for (hits[0..answer.count]) |hit| try std.testing.expect(hit.distance <= within);
            found[1] += share_found(hits[0..answer.count], all[0..3]);
            try std.testing.expectEqual(0, question.answer(0, &values, -1, &hits).count);
        }
        for (found) |share| try std.testing.expect(share >= 0.99 * queries);
    }
    for ([_]nearest.How{ .{ .k = 1, .recall = 1, .passing = &.{} }, .{ .k = 1, .recall = 0.9, .list_size = seen, .passing = &.{} } }) |how| {
        var question: nearest.Question = undefined;
        try question.init(allocator, &view, how, 1);
        defer question.deinit();
        try std.testing.expectEqual(0, question.coded);
    }
}

test "threads search while others code" {
    var world = try World.init(.{ .dim = 8, .metric = .cosine, .dtype = .f32 }, 5000, .copies, 11);
    defer world.deinit();
    const Reader = struct {
        fn run(of: *const World, ended: *const std.atomic.Value(bool), failed: *std.atomic.Value(bool), seed: u64) void {
            search_on(of, ended, seed) catch failed.store(true, .monotonic);
        }

        fn search_on(of: *const World, ended: *const std.atomic.Value(bool), seed: u64) !void {
            var prng = base.Prng.init(seed);
            while (!ended.load(.acquire)) {
                const rows: u32 = @intCast(World.batch * (1 + prng.below(of.rows / World.batch)));
                var deleted = try BitSet.init(std.heap.c_allocator, rows);
                defer deleted.deinit(std.heap.c_allocator);
                const view = of.view(rows, deleted);
                const row: u32 = @intCast(prng.below(rows));
                const bytes = of.records[row / World.batch].rows.vectors[row % World.batch * of.shape.row_bytes() ..];
                const vector: [*]const f32 = @ptrCast(@alignCast(bytes.ptr));
                var hits: [10]scan.Hit = undefined;
                var counts: [1]u32 = undefined;
                var looks: [1]u32 = undefined;
                try nearest.search(std.heap.c_allocator, &view, vector[0..of.shape.dim], .{ .k = 10, .recall = 0.9, .passing = &.{} }, &hits, &counts, &looks);
                if (counts[0] < 10 or hits[0].distance > 1e-6) return error.Missed;
                for (hits) |hit| if (hit.row >= rows) return error.NotInView;
            }
        }
    };
    var ended: std.atomic.Value(bool) = .init(false);
    var failed: std.atomic.Value(bool) = .init(false);
    var threads: [3]std.Thread = undefined;
    for (&threads, 0..) |*thread, i| thread.* = try std.Thread.spawn(.{}, Reader.run, .{ &world, &ended, &failed, i });
    // A chunk at a time, and by two: one of them codes, the other goes on with its own.
    const other = try std.Thread.spawn(.{}, struct {
        fn run(of: *World) void {
            for (0..10) |_| codes_file.code(allocator, &of.delta.codes, of.shape, of.rows, 1);
        }
    }.run, .{&world});
    while (world.delta.codes.coded.load(.monotonic) + codes_file.chunk_rows <= world.rows) codes_file.code(allocator, &world.delta.codes, world.shape, world.rows, 300);
    other.join();
    ended.store(true, .release);
    for (threads) |thread| thread.join();
    try std.testing.expect(!failed.load(.monotonic));
}

test "codes take what the delta counts for them, and where memory is short rows stay without" {
    for ([_]u32{ 2, 128, 1000 }) |dim| {
        var world = try World.init(.{ .dim = dim, .metric = .l2, .dtype = .i8 }, 5000, .clusters, 1);
        defer world.deinit();
        for (0..30) |index| {
            var failing = std.testing.FailingAllocator.init(allocator, .{ .fail_index = index });
            codes_file.code(failing.allocator(), &world.delta.codes, world.shape, world.rows, 1);
        }
        world.code();
        try std.testing.expectEqual(4864, world.delta.codes.coded.raw);
        var counter = std.testing.FailingAllocator.init(allocator, .{});
        var codes: Codes = .{};
        defer codes.deinit(counter.allocator());
        try codes.reserve(counter.allocator(), 5000);
        const first = counter.allocated_bytes;
        var bytes: usize = 0;
        for (0..19) |number| bytes += codes_file.code_bytes(&world.delta.codes, @intCast(number));
        try std.testing.expect(first + bytes <= codes_file.row_bytes(dim) * 5120 + 8192);
    }
}
