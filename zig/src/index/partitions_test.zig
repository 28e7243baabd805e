//! Builds that do not fit their memory.
const std = @import("std");
const base = @import("base");
const graph = @import("graph");
const quant = @import("quant");
const clusters = @import("clusters.zig");
const option_room = @import("options.zig");
const reader = @import("reader.zig");
const space = @import("space.zig");
const Builder = @import("builder.zig").Builder;
const graph_stage = @import("builder.zig");
const WarmStart = @import("warm_start.zig").WarmStart;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Options = option_room.Options;
const Partitions = @import("builder.zig").Partitions;
const Reader = reader.Reader;
const verify = @import("committed.zig").verify;
const testing = std.testing;

const Kind = enum { clustered, equal, two_places };

/// Clusters that overlap; one vector again and again; two vectors.
fn fill(kind: Kind, rows: []f32, dim: usize, seed: u64) void {
    for (0..rows.len / dim) |i| {
        var center = base.Prng.init(seed).split(i % 40);
        var offset = base.Prng.init(seed +% 1).split(i);
        for (rows[i * dim ..][0..dim]) |*value| value.* = switch (kind) {
            .clustered => center.gaussian() + 0.7 * offset.gaussian(),
            .equal => 0.5,
            .two_places => if (i % 3 == 0) 1 else -1,
        };
    }
}

const Case = struct {
    tmp: std.testing.TmpDir,
    buffer: [std.fs.max_path_bytes]u8 = undefined,
    path: []const u8 = "",
    rows: []f32,
    diagnostic: Diagnostic = .{},

    fn init(self: *Case, kind: Kind, n: usize, dim: usize) !void {
        self.* = .{ .tmp = testing.tmpDir(.{}), .rows = try testing.allocator.alloc(f32, n * dim) };
        const parent = try self.tmp.dir.realpath(".", &self.buffer);
        self.path = try std.fmt.bufPrint(self.buffer[parent.len..], "{s}/x.velo", .{parent});
        fill(kind, self.rows, dim, 5);
    }

    fn deinit(self: *Case) void {
        testing.allocator.free(self.rows);
        self.tmp.cleanup();
    }

    fn encoded(self: *Case, options: Options) !*Builder {
        const builder = try Builder.open(testing.allocator, self.path, options, &self.diagnostic);
        errdefer builder.close();
        try self.fill_in(builder, options);
        return builder;
    }

    fn fill_in(self: *Case, builder: *Builder, options: Options) !void {
        const bytes: [*]const u8 = @ptrCast(self.rows.ptr);
        try builder.scan(bytes, options.n, options.dim * 4, &self.diagnostic);
        try builder.add(bytes, options.n, options.dim * 4, &self.diagnostic);
    }
};

fn tight(options: Options) Options {
    var own = options;
    own.memory_bytes = option_room.memory_least(options, quant.dim_code_of(options.dim));
    return own;
}

const small: Options = .{ .dim = 24, .n = 5000, .metric = .l2, .dtype = .f32, .degree = 16, .build_list_size = 40, .links_kept = 16 };

test "a budget is met in one piece, in partitions, or refused with what it takes" {
    var diagnostic: Diagnostic = .{};
    const dim_code = quant.dim_code_of(128);
    var options: Options = .{ .dim = 128, .n = 1_000_000, .metric = .l2, .dtype = .f32 };
    try testing.expectEqual(option_room.Plan{}, try option_room.plan(options, dim_code, &diagnostic));
    options.memory_bytes = option_room.memory_whole(options, dim_code);
    try testing.expectEqual(0, (try option_room.plan(options, dim_code, &diagnostic)).partitions);
    var before: u32 = 2;
    for ([_]u64{ options.memory_bytes - 1, 128_000_000, 64_000_000, 30_000_000 }) |memory| {
        options.memory_bytes = memory;
        const plan = try option_room.plan(options, dim_code, &diagnostic);
        try testing.expect(plan.partitions > before);
        before = plan.partitions;
        // Every row has room twice, and a partition fits beside what all rows take.
        try testing.expect(@as(u64, plan.partitions) * plan.members_max >= 2 * options.n);
        const member = dim_code + 12 + 4 * options.degree + 32 + 4;
        try testing.expect(plan.members_max * member + 20 * options.n <= memory + member);
    }
    options.memory_bytes = 1_000_000;
    try testing.expectError(error.BudgetTooSmall, option_room.plan(options, dim_code, &diagnostic));
    try testing.expectEqual(option_room.memory_least(options, dim_code), diagnostic.needed_bytes);
    options.memory_bytes = diagnostic.needed_bytes;
    try testing.expect((try option_room.plan(options, dim_code, &diagnostic)).partitions > 3);
}

test "every row has a home and another place, where room allows it, and the same ones every time" {
    for ([_]Kind{ .clustered, .equal, .two_places }) |kind| {
        var case: Case = undefined;
        try case.init(kind, small.n, small.dim);
        defer case.deinit();
        const builder = try case.encoded(tight(small));
        defer builder.close();
        const plan = builder.plan;
        try testing.expect(plan.partitions > 5);
        var both: [2]clusters.Clusters = undefined;
        for (&both) |*own| own.* = try clusters.assign(testing.allocator, &builder.work_points.?, @intCast(small.n), plan, 3, 4, &builder.control, &case.diagnostic);
        defer for (&both) |*own| own.deinit(testing.allocator);
        try testing.expectEqualSlices(u16, both[0].homes, both[1].homes);
        try testing.expectEqualSlices(u16, both[0].guests, both[1].guests);
        var loads: [64]u32 = @splat(0);
        var without: u32 = 0;
        for (both[0].homes, both[0].guests) |home, guest| {
            try testing.expect(home != guest);
            loads[home] += 1;
            if (guest == clusters.nowhere) without += 1 else loads[guest] += 1;
        }
        for (loads[0..plan.partitions]) |load| try testing.expect(load <= plan.members_max);
        try testing.expect(without < small.n / 20);
    }
}

/// Mean recall at 10 of searches for every 25th vertex, by the codes' own distances.
fn recall(built: *const graph.Graph, codes: *const quant.BuildCodes) !f64 {
    const allocator = testing.allocator;
    var scratch = try graph.search.Scratch(quant.BuildCodes).init(allocator, codes, 40, built.degree_max);
    defer scratch.deinit(allocator);
    const Lists = struct {
        built: *const graph.Graph,
        pub fn copy(self: @This(), vertex: u32, _: []u32) []const u32 {
            return self.built.list(vertex);
        }
        pub inline fn hint(_: @This(), _: u32) void {}
    };
    const all = try allocator.alloc(graph.search.Candidate, built.n);
    defer allocator.free(all);
    var hits: f64 = 0;
    var wanted: f64 = 0;
    var target: u32 = 0;
    while (target < built.n) : (target += 25) {
        for (all, 0..) |*candidate, v| candidate.* = .init(if (v == target) std.math.inf(f32) else codes.distance(target, @intCast(v)), @intCast(v));
        std.sort.pdq(graph.search.Candidate, all, {}, graph.search.Candidate.less);
        scratch.begin(codes, target, &.{built.entry});
        scratch.walk(codes, Lists{ .built = built }, &.{});
        const found = scratch.list.slice();
        wanted += 10;
        for (found[0..@min(10, found.len)]) |candidate| hits += @floatFromInt(@intFromBool(candidate.distance() <= all[9].distance()));
    }
    return hits / wanted;
}

test "every vertex of the joined graph is reachable, and searches find nearly what they find in one piece" {
    for ([_]Kind{ .clustered, .equal, .two_places }) |kind| {
        var case: Case = undefined;
        try case.init(kind, small.n, small.dim);
        defer case.deinit();
        errdefer std.debug.print("{s}\n", .{case.diagnostic.message()});
        const builder = try case.encoded(tight(small));
        defer builder.close();
        try expect_good_graph(builder, &case.diagnostic);
    }
}

/// The graph that partitions make is whole, and searches find nearly what they find in one that was made in one piece.
fn expect_good_graph(builder: *Builder, diagnostic: *Diagnostic) !void {
    var partitions = try Partitions.build(builder, diagnostic);
    defer partitions.deinit();
    var joined = try graph.Graph.empty(testing.allocator, partitions.n, builder.options.degree);
    defer joined.deinit(testing.allocator);
    joined.entry = partitions.clusters.entry;
    for (joined.degrees, 0..) |*degree, row| {
        const list = try partitions.lists.read(@intCast(row), diagnostic);
        degree.* = @intCast(list.len);
        @memcpy(joined.list(@intCast(row)), list);
        for (list, 0..) |neighbor, i| {
            try testing.expect(neighbor < joined.n and neighbor != row);
            try testing.expectEqual(null, std.mem.indexOfScalar(u32, list[0..i], neighbor));
        }
    }
    try testing.expectEqual(joined.n, try graph.reachable_count(testing.allocator, &joined, joined.degree_max));

    var codes = try quant.BuildCodes.init(joined.n, builder.params.dim);
    defer codes.deinit();
    try builder.work_points.?.load(&codes, 0, 0, joined.n, diagnostic);
    var whole = try graph.build(quant.BuildCodes, testing.allocator, &codes, graph_stage.graph_options(builder, 0));
    defer whole.deinit(testing.allocator);
    const of_whole = try recall(&whole, &codes);
    const of_joined = try recall(&joined, &codes);
    errdefer std.debug.print("{d} in one piece, {d} in {d} partitions\n", .{ of_whole, of_joined, partitions.count });
    try testing.expect(of_joined > of_whole - 0.02);
}

test "partitions go on from the lists of a former index that lost some rows" {
    for ([_]Kind{ .clustered, .equal, .two_places }) |kind| {
        var warm_start: Case = undefined;
        try warm_start.init(kind, small.n, small.dim);
        defer warm_start.deinit();
        errdefer std.debug.print("{t}: {s}\n", .{ kind, warm_start.diagnostic.message() });
        // All but the last thousand rows were there, and each tenth of them is gone.
        var options = small;
        options.n = small.n - 1000;
        var rows: [small.n - 1000]u32 = undefined;
        {
            const builder = try warm_start.encoded(options);
            defer builder.close();
            try builder.run(&warm_start.diagnostic);
            for (builder.order.?, &rows) |row, *to| to.* = if (row % 10 == 0) WarmStart.removed else row - row / 10 - 1;
            try builder.commit(&.{}, null, &warm_start.diagnostic);
        }
        var case: Case = undefined;
        try case.init(kind, small.n, small.dim);
        defer case.deinit();
        options.n = 0;
        for (0..small.n) |row| {
            if (row % 10 == 0 and row < rows.len) continue;
            @memcpy(case.rows[options.n * small.dim ..][0..small.dim], warm_start.rows[row * small.dim ..][0..small.dim]);
            options.n += 1;
        }
        options.memory_bytes = 4 * tight(options).memory_bytes;
        const builder = try Builder.open(testing.allocator, case.path, options, &case.diagnostic);
        defer builder.close();
        try builder.go_on_from(warm_start.path, &rows, &case.diagnostic);
        try testing.expect(builder.plan.partitions > 3 and builder.plan.goes_on and builder.plan.removed_max > 0);
        try case.fill_in(builder, options);
        try expect_good_graph(builder, &case.diagnostic);
    }
}

test "what is built in partitions verifies, for every metric, and with one thread has the same bytes" {
    for ([_]space.Metric{ .l2, .ip, .cosine }) |metric| {
        var sums: [2]u64 = undefined;
        for (&sums) |*sum| {
            var case: Case = undefined;
            try case.init(.clustered, 3000, 24);
            defer case.deinit();
            errdefer std.debug.print("{s} {s}\n", .{ case.diagnostic.message(), case.diagnostic.file() });
            var options = small;
            options.n = 3000;
            options.metric = metric;
            const builder = try case.encoded(tight(options));
            try testing.expect(builder.plan.partitions > 2);
            {
                defer builder.close();
                try builder.run(&case.diagnostic);
                try builder.commit(&.{}, null, &case.diagnostic);
            }
            var pages: u64 = 0;
            try verify(testing.allocator, case.path, &pages, &case.diagnostic);
            var opened = try Reader.open(testing.allocator, case.path, .{ .links_kept = 8 }, &case.diagnostic);
            defer opened.deinit();
            try testing.expectEqual(3000, opened.n());
            var dir = try std.fs.cwd().openDir(case.path, .{ .iterate = true });
            defer dir.close();
            var iterator = dir.iterate();
            while (try iterator.next()) |entry| try testing.expect(!std.mem.endsWith(u8, entry.name, ".work"));
            const text = try dir.readFileAlloc(testing.allocator, "manifest.json", 1 << 20);
            defer testing.allocator.free(text);
            sum.* = base.checksum(text); // the manifest holds the sums of all files
        }
        try testing.expectEqual(sums[0], sums[1]);
    }
}
