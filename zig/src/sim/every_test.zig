//! A recall of 1 over rows of small whole numbers, where many are equally far: the answer is that of comparing all, and
//! the pages that are read, and no others, are those on which something passes.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const search = @import("search");
const running_file = @import("running.zig");
const filter_room = @import("filter");
const faults = @import("device.zig");
const Call = @import("running.zig").Call;
const Running = @import("running.zig").Running;
const testing = std.testing;

const n = 1000;
const dim = 8;
const k = 10;
const query_count = 12;
/// Fewer than there are pages: a search takes several rounds.
const burst_max = 3;

const Row = [dim]f32;

const Fixture = struct {
    tmp: std.testing.TmpDir,
    reader: index.Reader,
    shared: search.Shared,
    file: std.fs.File,
    /// In placement order.
    rows: [n]Row,

    fn init(self: *Fixture, seed: u64, plan: search.Plan) !void {
        self.tmp = testing.tmpDir(.{});
        errdefer self.tmp.cleanup();
        var diagnostic: index.Diagnostic = .{};
        errdefer std.debug.print("{s}\n", .{diagnostic.message()});
        var buffer: [std.fs.max_path_bytes]u8 = undefined;
        const parent = try self.tmp.dir.realpath(".", &buffer);
        const path = try std.fs.path.join(testing.allocator, &.{ parent, "x.velo" });
        defer testing.allocator.free(path);
        var prng = base.Prng.init(seed);
        var rows: [n]Row = undefined;
        for (&rows) |*row| row.* = random_row(&prng);
        {
            const builder = try index.Builder.open(testing.allocator, path, .{ .dim = dim, .n = n, .metric = .l2, .dtype = .f32, .degree = 8, .build_list_size = 16, .store_vectors = true, .page_codes = true }, &diagnostic);
            defer builder.close();
            try builder.scan(std.mem.asBytes(&rows), n, dim * 4, &diagnostic);
            try builder.add(std.mem.asBytes(&rows), n, dim * 4, &diagnostic);
            try builder.run(&diagnostic);
            for (&self.rows, builder.order.?) |*placed, row| placed.* = rows[row];
            try builder.commit(&.{}, null, &diagnostic);
        }
        self.reader = try index.Reader.open(testing.allocator, path, running_file.options_of(plan), &diagnostic);
        errdefer self.reader.deinit();
        self.shared = try search.Shared.init(testing.allocator, &self.reader, plan);
        errdefer self.shared.deinit(testing.allocator);
        self.file = try self.reader.dir.openFile(index.reader.file_pages, .{});
    }

    fn deinit(self: *Fixture) void {
        self.file.close();
        self.shared.deinit(testing.allocator);
        self.reader.deinit();
        self.tmp.cleanup();
    }

    fn rows_per_page(self: *const Fixture) u32 {
        return self.reader.vectors.?.geometry.rows_per_page;
    }

    fn page_count(self: *const Fixture) u32 {
        return @intCast(self.reader.vectors.?.geometry.page_count(n));
    }
};

fn random_row(prng: *base.Prng) Row {
    var row: Row = undefined;
    for (&row) |*value| value.* = @floatFromInt(prng.below(3));
    return row;
}

const Asked = struct {
    queries: *const [query_count]Row,
    excluded: ?*const [query_count]u32 = null,
    mask: ?*const [(n + 7) / 8]u8 = null,
    seed: u64 = 0,
    faults: u32 = 0,

    fn passes(self: *const Asked, vertex: usize) bool {
        const mask = self.mask orelse return true;
        return mask[vertex / 8] >> @intCast(vertex % 8) & 1 == 1;
    }
};

const Answers = struct {
    vertices: [query_count * k]i64 = @splat(-2),
    distances: [query_count * k]f32 = @splat(0),
    outcomes: [query_count]search.Outcome = @splat(.closed),
    reads: [query_count]u32 = @splat(0),
    rounds: [query_count]u32 = @splat(0),
    scored: [query_count]u32 = @splat(0),
};

fn ask(fixture: *Fixture, asked: *const Asked, answers: *Answers) !void {
    const running: Running = try .init(&fixture.shared, .{
        .threads = 1,
        .queries_in_flight = 1, // no read is shared
        .queue_depth = 4,
        .file = fixture.file.handle,
        .vectors_file = fixture.reader.vectors.?.file.handle,
        .simulated_seed = asked.seed,
        .simulated_faults = asked.faults,
    });
    defer running.deinit();
    const filter: ?*filter_room.Filter = if (asked.mask) |mask| try filter_room.Filter.from_mask(testing.allocator, mask, n) else null;
    defer if (filter) |own| own.deinit();
    const sinks: search.Answers = .{ .vertices = &answers.vertices, .distances = &answers.distances, .outcomes = &answers.outcomes, .costs = .{ .reads = &answers.reads, .rounds = &answers.rounds, .records_scored = &answers.scored } };
    var call: Call = .{ .job = .{
        .queries = std.mem.asBytes(asked.queries),
        .query_bytes = dim * 4,
        .dtype = .f32,
        .count = query_count,
        .segments = &.{},
        .excluded = if (asked.excluded) |excluded| excluded else null,
        .answers = &sinks,
        .on_done = Call.on_done,
    }, .segment = .{
        .segment = running.segment,
        .filters = if (filter) |*own| own[0..1] else &.{},
        .parameters = search.parameters.resolve(.{ .k = k, .recall = 1, .burst_max = burst_max }, .{}),
    } };
    try testing.expect(call.submit(&running));
    call.done.wait();
}

const Found = struct {
    distance: f64,
    vertex: u32,

    fn less(_: void, a: Found, b: Found) bool {
        return if (a.distance == b.distance) a.vertex < b.vertex else a.distance < b.distance;
    }
};

/// Holds answers against a look at every row, and costs against a look at every page.
fn expect_all_looked_at(fixture: *const Fixture, asked: *const Asked, answers: *const Answers) !void {
    var pages: u32 = 0;
    for (0..fixture.page_count()) |page| {
        const first = page * fixture.rows_per_page();
        for (first..@min(n, first + fixture.rows_per_page())) |vertex| {
            if (!asked.passes(vertex)) continue;
            pages += 1;
            break;
        }
    }
    for (asked.queries, 0..) |*query, q| {
        errdefer std.debug.print("query {d}\n", .{q});
        try testing.expectEqual(.ok, answers.outcomes[q]);
        var found: [n]Found = undefined;
        var count: u32 = 0;
        for (&fixture.rows, 0..) |*row, vertex| {
            if (!asked.passes(vertex)) continue;
            if (asked.excluded) |excluded| if (excluded[q] == vertex) continue;
            var distance: f64 = 0;
            for (query, row) |a, b| distance += (a - b) * (a - b);
            found[count] = .{ .distance = distance, .vertex = @intCast(vertex) };
            count += 1;
        }
        std.mem.sortUnstable(Found, found[0..count], {}, Found.less);
        var expected: [k]i64 = @splat(-1);
        var expected_distances: [k]f32 = @splat(std.math.inf(f32));
        for (found[0..@min(k, count)], 0..) |one, i| {
            expected[i] = one.vertex;
            expected_distances[i] = @floatCast(one.distance);
        }
        try testing.expectEqualSlices(i64, &expected, answers.vertices[q * k ..][0..k]);
        try testing.expectEqualSlices(f32, &expected_distances, answers.distances[q * k ..][0..k]);
        try testing.expectEqual(pages, answers.reads[q]);
        try testing.expectEqual(std.math.divCeil(u32, pages, burst_max), answers.rounds[q]);
        try testing.expectEqual(count, answers.scored[q]);
    }
}

test "a recall of 1 is the answer of comparing all rows, equally far ones by vertex, in every order of arrival" {
    for (std.enums.values(search.Plan)) |plan| {
        var fixture: Fixture = undefined;
        try fixture.init(31, plan);
        defer fixture.deinit();
        // The last page is not full, and rounds are several.
        try testing.expect(n % fixture.rows_per_page() != 0 and fixture.page_count() > 2 * burst_max);
        var prng = base.Prng.init(32);
        var queries: [query_count]Row = undefined;
        for (&queries) |*query| query.* = random_row(&prng);
        queries[0] = fixture.rows[n - 1];
        for (0..4) |seed| {
            errdefer std.debug.print("{t}, seed={d}\n", .{ plan, seed });
            const asked: Asked = .{ .queries = &queries, .seed = seed, .faults = if (seed == 0) 0 else faults.Fault.late.mask() | faults.Fault.reordered.mask() };
            var answers: Answers = .{};
            try ask(&fixture, &asked, &answers);
            try expect_all_looked_at(&fixture, &asked, &answers);
        }
    }
}

test "a recall of 1 without the row that asks: it is taken as absent, its copies are not" {
    var fixture: Fixture = undefined;
    try fixture.init(33, .links_in_memory);
    defer fixture.deinit();
    const rows_per_page = fixture.rows_per_page();
    var excluded: [query_count]u32 = undefined;
    var queries: [query_count]Row = undefined;
    for (&excluded, &queries, 0..) |*vertex, *query, i| {
        vertex.* = switch (i) {
            0 => 0,
            1 => rows_per_page - 1,
            2 => rows_per_page,
            3 => n - 1,
            else => @intCast(i * 83),
        };
        query.* = fixture.rows[vertex.*];
    }
    const asked: Asked = .{ .queries = &queries, .excluded = &excluded };
    var answers: Answers = .{};
    try ask(&fixture, &asked, &answers);
    try expect_all_looked_at(&fixture, &asked, &answers);
}

test "a recall of 1 under a filter reads the pages on which something passes, and those alone" {
    var fixture: Fixture = undefined;
    try fixture.init(34, .links_in_memory);
    defer fixture.deinit();
    const rows_per_page = fixture.rows_per_page();
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    var queries: [query_count]Row = undefined;
    for (&queries) |*query| query.* = random_row(&prng);
    for ([_]u32{ 0, 1, 1, 1, 1, 2, 3, 5, 8, 500 }, 0..) |count, turn| {
        errdefer std.debug.print("turn {d}\n", .{turn});
        var mask: [(n + 7) / 8]u8 = @splat(0);
        for (0..count) |i| {
            // Beside the ends of pages and of words, where counting goes wrong first.
            const unit: u64 = if (turn % 2 == 0) rows_per_page else 64;
            const near = unit * (1 + prng.below(n / unit)) -| prng.below(2);
            const vertex: u64 = if (turn == 1) n - 1 else if (i % 4 < 3) @min(near, n - 1) else prng.below(n);
            mask[vertex / 8] |= @as(u8, 1) << @intCast(vertex % 8);
        }
        const asked: Asked = .{ .queries = &queries, .mask = &mask };
        var answers: Answers = .{};
        try ask(&fixture, &asked, &answers);
        try expect_all_looked_at(&fixture, &asked, &answers);
    }
}
