//! Whole searches on the simulated device: against brute force, and under faults against the same search without.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const index = @import("index");
const search = @import("search");
const cache_room = @import("cache");
const filter_room = @import("filter");
const faults = @import("device.zig");
const running_file = @import("running.zig");
const Call = running_file.Call;
const Running = running_file.Running;
const testing = std.testing;

pub const n = 3000;
pub const dim = 24;
pub const query_count = 40;
const k = 10;

pub const World = struct {
    tmp: std.testing.TmpDir,
    buffer: [std.fs.max_path_bytes]u8 = undefined,
    path: []const u8 = "",
    rows: []f32,
    queries: []f32,
    diagnostic: index.Diagnostic = .{},

    /// Rows in thirty clusters, most of them on one or two pages. Each plan can open it.
    pub fn init(self: *World, seed: u64) !void {
        return self.init_spread(seed, 3, true);
    }

    /// Rows around centers so far apart; at 0 they are one cloud, and the neighbors of a query lie on many pages.
    fn init_spread(self: *World, seed: u64, spread: f32, page_codes: bool) !void {
        self.* = .{
            .tmp = testing.tmpDir(.{}),
            .rows = try testing.allocator.alloc(f32, n * dim),
            .queries = try testing.allocator.alloc(f32, query_count * dim),
        };
        const parent = try self.tmp.dir.realpath(".", &self.buffer);
        self.path = try std.fmt.bufPrint(self.buffer[parent.len..], "{s}/x.velo", .{parent});
        var prng = base.Prng.init(seed);
        var centers: [30 * dim]f32 = undefined;
        for (&centers) |*value| value.* = spread * prng.gaussian();
        for ([_][]f32{ self.rows, self.queries }) |vectors| {
            for (0..vectors.len / dim) |i| {
                const center = centers[prng.below(30) * dim ..][0..dim];
                for (vectors[i * dim ..][0..dim], center) |*value, middle| value.* = middle + prng.gaussian();
            }
        }
        try running_file.build(self.path, self.rows, dim, page_codes, &self.diagnostic);
    }

    pub fn deinit(self: *World) void {
        testing.allocator.free(self.rows);
        testing.allocator.free(self.queries);
        self.tmp.cleanup();
    }

    /// As exact search reports it: in float64, rounded once.
    pub fn distance(self: *const World, query: usize, vertex: usize) f32 {
        var sum: f64 = 0;
        for (self.queries[query * dim ..][0..dim], self.rows[vertex * dim ..][0..dim]) |a, b| sum += (@as(f64, a) - b) * (@as(f64, a) - b);
        return @floatCast(sum);
    }

    fn nearest(self: *const World, query: usize) [k]u32 {
        return running_file.nearest(k, self.queries[query * dim ..][0..dim], self.rows);
    }
};

const Answers = struct {
    vertices: [query_count * k]i64 = @splat(-1),
    outcomes: [query_count]search.Outcome = @splat(.ok),
    distances: [query_count * k]f32 = @splat(0),
    pages: [query_count]i64 = @splat(-1),
    files: [query_count]i32 = @splat(-1),
    reads: [query_count]u32 = @splat(0),
    rounds: [query_count]u32 = @splat(0),
    shared_reads: [query_count]u32 = @splat(0),
    /// As the devices count them.
    device_reads: u64 = 0,
    cache_hits: [query_count]u32 = @splat(0),

    fn sinks(self: *Answers) search.Answers {
        return .{
            .vertices = &self.vertices,
            .outcomes = &self.outcomes,
            .distances = &self.distances,
            .error_pages = &self.pages,
            .error_files = &self.files,
            .costs = .{ .reads = &self.reads, .rounds = &self.rounds, .shared_reads = &self.shared_reads, .cache_hits = &self.cache_hits },
        };
    }
};

const Setting = struct {
    plan: search.Plan = .links_in_memory,
    cache_bytes: usize = 0,
    page_cache_bytes: usize = 0,
    threads: u32 = 2,
    seed: u64 = 0,
    faults: u32 = 0,
    queries_in_flight: u32 = 4,
    beam_width: u32 = 0,
    sigma: f32 = 0,
    list_size: u32 = 60,
    exact: bool = false,
    burst_max: u32 = 0,
    /// So many times the same query, one after the other, then the next.
    repeats: u32 = 1,
    filter: ?*const filter_room.Filter = null,
};

fn run(world: *World, setting: Setting, answers: *Answers) !void {
    var reader = try index.Reader.open(testing.allocator, world.path, running_file.options_of(setting.plan), &world.diagnostic);
    defer reader.deinit();
    var shared = try search.Shared.init(testing.allocator, &reader, setting.plan);
    defer shared.deinit(testing.allocator);
    var cache: ?cache_room.Cache = if (setting.cache_bytes == 0) null else try cache_room.Cache.init(testing.allocator, .{
        .vertex_count = n,
        .budget_bytes = setting.cache_bytes,
        .slot_bytes = 96,
    });
    defer if (cache) |*own| own.deinit();
    if (cache) |*own| shared.cache = own;
    var page_caches: search.PageCaches = if (setting.page_cache_bytes == 0) .{} else try running_file.page_caches_of(&reader, setting.page_cache_bytes);
    defer page_caches.deinit();
    shared.page_caches = &page_caches;
    const file = try reader.dir.openFile(index.reader.file_pages, .{});
    defer file.close();
    const running: Running = try .init(&shared, .{
        .threads = setting.threads,
        .queries_in_flight = setting.queries_in_flight,
        .queue_depth = 8,
        .file = file.handle,
        .vectors_file = reader.vectors.?.file.handle,
        .simulated_seed = setting.seed,
        .simulated_faults = setting.faults,
    });
    defer running.deinit();
    const sinks = answers.sinks();
    var queries: [query_count * dim]f32 = undefined;
    for (0..query_count) |i| @memcpy(queries[i * dim ..][0..dim], world.queries[i / setting.repeats * dim ..][0..dim]);
    var call: Call = .{ .job = .{
        .queries = std.mem.sliceAsBytes(&queries),
        .query_bytes = dim * 4,
        .dtype = .f32,
        .count = query_count,
        .segments = &.{},
        .answers = &sinks,
        .on_done = Call.on_done,
    }, .segment = .{ .segment = running.segment, .filters = if (setting.filter != null) (&setting.filter)[0..1] else &.{}, .parameters = search.parameters.resolve(.{
        .k = k,
        .list_size = setting.list_size,
        .beam_width = setting.beam_width,
        .sigma = setting.sigma,
        .exact = setting.exact,
        .burst_max = setting.burst_max,
    }, .{}) } };
    try call.segment.prepare_filters();
    try testing.expect(call.submit(&running));
    call.done.wait();
    for (running.engine.workers) |*worker| answers.device_reads += worker.device.sequence;
}

fn recall(world: *const World, answers: *const Answers, repeats: usize) f64 {
    var found: usize = 0;
    for (0..query_count) |query| {
        for (world.nearest(query / repeats)) |vertex| {
            if (std.mem.indexOfScalar(i64, answers.vertices[query * k ..][0..k], vertex) != null) found += 1;
        }
    }
    return @as(f64, @floatFromInt(found)) / (query_count * k);
}

test "every entry point lies with its center, once" {
    var world: World = undefined;
    try world.init(3);
    defer world.deinit();
    var reader = try index.Reader.open(testing.allocator, world.path, .{ .links = .in_memory }, &world.diagnostic);
    defer reader.deinit();
    var shared = try search.Shared.init(testing.allocator, &reader, .links_in_memory);
    defer shared.deinit(testing.allocator);
    const starts = shared.entry_starts;
    try testing.expectEqual(reader.codes.centers.len / reader.codes.params.dim + 1, starts.len);
    try testing.expectEqual(0, starts[0]);
    try testing.expectEqual(shared.entries.len, starts[starts.len - 1]);
    for (starts[0 .. starts.len - 1], starts[1..], 0..) |start, end, center| {
        for (shared.entries[start..end], start..) |vertex, place| {
            try testing.expectEqual(center, reader.codes.center_ids[vertex]);
            try testing.expectEqual(reader.codes.center_ids[vertex], shared.entry_codes.center_ids[place]);
            if (place > start) try testing.expect(shared.entries[place - 1] < vertex);
        }
    }
}

test "all plans, with and without a cache, find what brute force finds" {
    var world: World = undefined;
    try world.init(1);
    defer world.deinit();
    for ([_]Setting{
        .{},
        .{ .plan = .links_on_disk },
        .{ .plan = .links_on_disk, .cache_bytes = 60_000 },
        .{ .plan = .links_on_disk, .cache_bytes = 16_000, .threads = 3, .queries_in_flight = 1 },
        .{ .plan = .walk, .list_size = 30 },
    }) |setting| {
        errdefer std.debug.print("{any}\n", .{setting});
        var answers: Answers = .{};
        try run(&world, setting, &answers);
        for (0..query_count) |query| try testing.expectEqual(.ok, answers.outcomes[query]);
        const found = recall(&world, &answers, 1);
        errdefer std.debug.print("recall {d}\n", .{found});
        try testing.expect(found >= 0.95);
    }
}

test "a round reads all that is wanted, and rounds follow until nothing is" {
    var world: World = undefined;
    try world.init_spread(8, 0, false);
    defer world.deinit();
    var bursts: Answers = .{};
    try run(&world, .{ .threads = 1, .queries_in_flight = 1 }, &bursts);
    var singles: Answers = .{};
    try run(&world, .{ .threads = 1, .queries_in_flight = 1, .burst_max = 1 }, &singles);
    errdefer std.debug.print("reads {d} in {d} rounds, {d} in {d}, recall {d} and {d}\n", .{ total_of(&bursts.reads), total_of(&bursts.rounds), total_of(&singles.reads), total_of(&singles.rounds), recall(&world, &bursts, 1), recall(&world, &singles, 1) });
    for ([_]*const Answers{ &bursts, &singles }) |answers| {
        for (0..query_count) |query| try testing.expectEqual(.ok, answers.outcomes[query]);
        try testing.expect(recall(&world, answers, 1) >= 0.95);
    }
    // A page a round takes as many rounds as pages.
    try testing.expectEqualSlices(u32, &singles.reads, &singles.rounds);
    // Else most pages are read in the first round, and some queries want more of them afterwards.
    try testing.expect(2 * total_of(&bursts.rounds) < total_of(&bursts.reads));
    try testing.expect(total_of(&bursts.rounds) > query_count);
}

test "what came damaged once is read again, and what stays damaged is read so often and no more" {
    var world: World = undefined;
    try world.init_spread(9, 0, false);
    defer world.deinit();
    const alone: Setting = .{ .threads = 1, .queries_in_flight = 1 };
    var clean: Answers = .{};
    try run(&world, alone, &clean);
    var failed: usize = 0;
    var succeeded: usize = 0;
    for (1..6) |seed| {
        errdefer std.debug.print("seed={d}\n", .{seed});
        var passing = alone;
        passing.seed = seed;
        passing.faults = faults.Fault.eio_once.mask() | faults.Fault.wrong_page.mask();
        var answers: Answers = .{};
        try run(&world, passing, &answers);
        for (0..query_count) |query| try testing.expectEqual(.ok, answers.outcomes[query]);
        try testing.expectEqualSlices(i64, &clean.vertices, &answers.vertices);
        try testing.expect(answers.device_reads > clean.device_reads);

        var lasting = alone;
        lasting.seed = seed;
        lasting.faults = faults.Fault.bit_flip.mask();
        answers = .{};
        try run(&world, lasting, &answers);
        for (0..query_count) |query| {
            if (answers.outcomes[query] == .ok) {
                succeeded += 1;
                continue;
            }
            failed += 1;
            try testing.expectEqual(.corrupt, answers.outcomes[query]);
            try testing.expect(answers.pages[query] >= 0);
            try testing.expect(answers.reads[query] <= clean.reads[query] + 8);
        }
    }
    try testing.expect(failed > 0 and succeeded > 0);
}

test "links on disk: a bound saves reads, looking ahead saves rounds, and all find what brute force finds" {
    var world: World = undefined;
    try world.init(4);
    defer world.deinit();
    const settings = [_]Setting{
        .{ .plan = .links_on_disk, .beam_width = 1, .queries_in_flight = 1, .threads = 1 },
        .{ .plan = .links_on_disk, .beam_width = 1, .sigma = 100, .list_size = 400, .queries_in_flight = 1, .threads = 1 },
        .{ .plan = .links_on_disk, .sigma = 100, .list_size = 400, .queries_in_flight = 1, .threads = 1 },
        .{ .plan = .links_on_disk, .beam_width = 1 },
        .{ .plan = .links_on_disk, .beam_width = 64, .cache_bytes = 30_000 },
    };
    // The counters below are those of queries that run alone: with others in flight a read waits for them.
    var answers: [settings.len]Answers = undefined;
    for (settings, &answers) |setting, *own| {
        errdefer std.debug.print("{any}\n", .{setting});
        own.* = .{};
        try run(&world, setting, own);
        for (0..query_count) |query| try testing.expectEqual(.ok, own.outcomes[query]);
        const found = recall(&world, own, 1);
        errdefer std.debug.print("recall {d}\n", .{found});
        try testing.expect(found >= 0.95);
    }
    const bounded, const unbounded, const ahead = .{ &answers[0], &answers[1], &answers[2] };
    // One candidate ahead: every read is a round.
    for (bounded.reads, bounded.rounds) |reads, rounds| try testing.expectEqual(reads, rounds);
    try testing.expect(total_of(&bounded.reads) < total_of(&unbounded.reads));
    errdefer std.debug.print("rounds {d} and {d}, reads {d} and {d}\n", .{ total_of(&ahead.rounds), total_of(&unbounded.rounds), total_of(&ahead.reads), total_of(&unbounded.reads) });
    try testing.expect(total_of(&ahead.rounds) < total_of(&unbounded.rounds));
}

fn total_of(counts: []const u32) u64 {
    var total: u64 = 0;
    for (counts) |count| total += count;
    return total;
}

test "faults never change an answer: a query gives the right one, or an error that names its page" {
    var world: World = undefined;
    try world.init(2);
    defer world.deinit();
    var clean: Answers = .{};
    try run(&world, .{}, &clean);
    const first_seed = testing.random_seed;
    var failed: usize = 0;
    var succeeded: usize = 0;
    for (0..30) |turn| {
        const seed = @as(u64, first_seed) + turn;
        errdefer std.debug.print("seed={d}\n", .{seed});
        var answers: Answers = .{};
        // Every fault there is, in proportions that the seed draws.
        try run(&world, .{ .seed = seed, .faults = faults.all | faults.swarm, .threads = 1 + @as(u32, @intCast(turn % 2)) }, &answers);
        for (0..query_count) |query| {
            switch (answers.outcomes[query]) {
                .ok => {
                    succeeded += 1;
                    try testing.expectEqualSlices(i64, clean.vertices[query * k ..][0..k], answers.vertices[query * k ..][0..k]);
                },
                .corrupt, .io => {
                    failed += 1;
                    try testing.expect(answers.pages[query] >= 0);
                },
                else => return error.UnexpectedOutcome,
            }
        }
    }
    try testing.expect(succeeded > 0);
    try testing.expect(failed > 0);
}

test "exact distances are those of float64, in their order, in every plan" {
    var world: World = undefined;
    try world.init(6);
    defer world.deinit();
    for ([_]Setting{
        .{},
        .{ .burst_max = 1 },
        .{ .plan = .links_on_disk },
        .{ .plan = .links_on_disk, .cache_bytes = 60_000, .beam_width = 16 },
        .{ .plan = .links_on_disk, .queries_in_flight = 1, .threads = 1, .burst_max = 3 },
        .{ .plan = .links_on_disk, .queries_in_flight = 20, .threads = 1, .repeats = 20 },
        .{ .plan = .walk },
    }) |setting| {
        errdefer std.debug.print("{any}\n", .{setting});
        var estimated: Answers = .{};
        try run(&world, setting, &estimated);
        var own = setting;
        own.exact = true;
        var answers: Answers = .{};
        try run(&world, own, &answers);
        for (0..query_count) |query| {
            try testing.expectEqual(.ok, answers.outcomes[query]);
            const found = answers.vertices[query * k ..][0..k];
            const distances = answers.distances[query * k ..][0..k];
            for (found, distances) |vertex, distance| try testing.expectEqual(world.distance(query / setting.repeats, @intCast(vertex)), distance);
            try testing.expect(std.sort.isSorted(f32, distances, {}, std.sort.asc(f32)));
            // Reads of vectors are counted.
            try testing.expect(answers.reads[query] + answers.shared_reads[query] > 0);
        }
        try testing.expect(total_of(&answers.reads) > total_of(&estimated.reads));
        try testing.expect(total_of(&answers.rounds) > total_of(&estimated.rounds));
        try testing.expectEqual(answers.device_reads, total_of(&answers.reads));
        try testing.expect(recall(&world, &answers, setting.repeats) >= 0.95);
        if (setting.plan == .links_in_memory) try testing.expect(recall(&world, &answers, 1) >= recall(&world, &estimated, 1));
    }
}

test "faults while vectors are read never change an exact answer, or name the page and its file" {
    var world: World = undefined;
    try world.init(7);
    defer world.deinit();
    var clean: Answers = .{};
    try run(&world, .{ .exact = true }, &clean);
    var failed = [2]usize{ 0, 0 };
    for (0..20) |turn| {
        const seed = @as(u64, testing.random_seed) + turn;
        errdefer std.debug.print("seed={d}\n", .{seed});
        var answers: Answers = .{};
        try run(&world, .{ .exact = true, .seed = seed, .faults = faults.all | faults.swarm, .threads = 1 + @as(u32, @intCast(turn % 2)) }, &answers);
        for (0..query_count) |query| switch (answers.outcomes[query]) {
            .ok => {
                try testing.expectEqualSlices(i64, clean.vertices[query * k ..][0..k], answers.vertices[query * k ..][0..k]);
                try testing.expectEqualSlices(f32, clean.distances[query * k ..][0..k], answers.distances[query * k ..][0..k]);
            },
            .corrupt, .io => {
                failed[@intCast(answers.files[query])] += 1;
                try testing.expect(answers.pages[query] >= 0);
            },
            else => return error.UnexpectedOutcome,
        };
    }
    for (failed) |count| try testing.expect(count > 0);
}

test "a page cache, of some pages or of all, changes no answer and no distance, under faults either" {
    var world: World = undefined;
    try world.init(4);
    defer world.deinit();
    for ([_]bool{ false, true }) |exact| {
        var clean: Answers = .{};
        try run(&world, .{ .exact = exact, .repeats = 10 }, &clean);
        for ([_]usize{ 1 << 15, 1 << 17, 1 << 24 }, 0..) |bytes, size| for ([_]u32{ 0, faults.all | faults.swarm }) |which| {
            const seed = @as(u64, testing.random_seed) + size;
            errdefer std.debug.print("exact={} bytes={d} faults={x} seed={d}\n", .{ exact, bytes, which, seed });
            var answers: Answers = .{};
            try run(&world, .{ .exact = exact, .repeats = 10, .page_cache_bytes = bytes, .seed = seed, .faults = which, .threads = 1 + @as(u32, @intCast(size % 2)) }, &answers);
            for (0..query_count) |query| {
                if (which == 0) try testing.expectEqual(.ok, answers.outcomes[query]);
                if (answers.outcomes[query] != .ok) continue;
                try testing.expectEqualSlices(i64, clean.vertices[query * k ..][0..k], answers.vertices[query * k ..][0..k]);
                try testing.expectEqualSlices(f32, clean.distances[query * k ..][0..k], answers.distances[query * k ..][0..k]);
            }
            if (which != 0) continue;
            try testing.expectEqual(answers.device_reads, total_of(&answers.reads));
            try testing.expectEqual(
                total_of(&clean.reads) + total_of(&clean.shared_reads),
                total_of(&answers.reads) + total_of(&answers.shared_reads) + total_of(&answers.cache_hits),
            );
            try testing.expect(total_of(&answers.cache_hits) > 0);
        };
    }
}

test "the order in which pages arrive changes nothing" {
    var world: World = undefined;
    try world.init(3);
    defer world.deinit();
    var first: Answers = .{};
    try run(&world, .{ .list_size = 20 }, &first);
    for (0..10) |seed| {
        errdefer std.debug.print("seed={d}\n", .{seed});
        var answers: Answers = .{};
        try run(&world, .{ .list_size = 20, .seed = seed, .faults = faults.Fault.late.mask() | faults.Fault.reordered.mask(), .queries_in_flight = 1 + @as(u32, @intCast(seed)) }, &answers);
        try testing.expectEqualSlices(i64, &first.vertices, &answers.vertices);
        // Whether a page was read for this query or for another one depends on the order, not whether it was wanted.
        for (0..query_count) |i|
            try testing.expectEqual(first.reads[i] + first.shared_reads[i], answers.reads[i] + answers.shared_reads[i]);
    }
}

test "a traversal of pages goes on with whatever arrives, in any order" {
    var world: World = undefined;
    try world.init_spread(10, 0, true); // the neighbors of a query are on many pages
    defer world.deinit();
    for (0..10) |seed| {
        errdefer std.debug.print("seed={d}\n", .{seed});
        var answers: Answers = .{};
        try run(&world, .{ .plan = .walk, .list_size = 100, .seed = seed, .faults = faults.Fault.late.mask() | faults.Fault.reordered.mask(), .queries_in_flight = 1 + @as(u32, @intCast(seed)), .threads = 1 }, &answers);
        const found = recall(&world, &answers, 1);
        errdefer std.debug.print("recall {d}, reads {d}, rounds {d}\n", .{ found, total_of(&answers.reads), total_of(&answers.rounds) });
        try testing.expect(found >= 0.95);
        try testing.expectEqual(answers.device_reads, total_of(&answers.reads));
        // Two reads are in flight at first and more later, so no chain is half as long as all reads.
        for (answers.reads, answers.shared_reads, answers.rounds) |reads, others, rounds| try testing.expect(rounds <= (reads + others + 1) / 2 + 1);
    }
}

test "a traversal of pages behind a filter finds the nearest that pass, few of them in one burst and none without a read" {
    var world: World = undefined;
    try world.init_spread(11, 0, true);
    defer world.deinit();
    var prng = base.Prng.init(11);
    for ([_]u32{ n, n / 2, n / 10, n / 50, 5, 0 }) |matches| {
        var bits: [(n + 7) / 8]u8 = @splat(0);
        var count: u32 = 0;
        while (count < matches) {
            const vertex = prng.below(n);
            const bit = @as(u8, 1) << @intCast(vertex % 8);
            count += @intFromBool(bits[vertex / 8] & bit == 0);
            bits[vertex / 8] |= bit;
        }
        const filter = try filter_room.Filter.from_mask(testing.allocator, &bits, n);
        defer filter.deinit();
        var answers: Answers = .{};
        try run(&world, .{ .plan = .walk, .list_size = 100, .filter = filter }, &answers);
        var found: u32 = 0;
        var wanted: u32 = 0;
        const passing = try testing.allocator.alloc(f32, matches * dim);
        defer testing.allocator.free(passing);
        var numbers: [n]u32 = undefined;
        var next: u32 = 0;
        for (0..n) |vertex| {
            if (!filter.passes(@intCast(vertex))) continue;
            @memcpy(passing[next * dim ..][0..dim], world.rows[vertex * dim ..][0..dim]);
            numbers[next] = @intCast(vertex);
            next += 1;
        }
        for (0..query_count) |query| {
            try testing.expectEqual(.ok, answers.outcomes[query]);
            const vertices = answers.vertices[query * k ..][0..k];
            for (vertices) |vertex| try testing.expect(vertex < 0 or filter.passes(@intCast(vertex)));
            const nearest = running_file.nearest(k, world.queries[query * dim ..][0..dim], passing);
            const most = @min(k, matches);
            wanted += most;
            for (nearest[0..most]) |number| found += @intFromBool(std.mem.indexOfScalar(i64, vertices, numbers[number]) != null);
            if (matches <= 5) {
                try testing.expect(answers.reads[query] + answers.shared_reads[query] <= matches);
                try testing.expectEqual(@min(1, matches), answers.rounds[query]);
            }
        }
        errdefer std.debug.print("{d} pass: {d} of {d} found in {d} reads\n", .{ matches, found, wanted, total_of(&answers.reads) });
        try testing.expect(found * 100 >= wanted * 95);
    }
}

test "a traversal of pages under faults gives right distances and finds its neighbors, or names the page" {
    var world: World = undefined;
    try world.init(12);
    defer world.deinit();
    var succeeded: usize = 0;
    var found: usize = 0;
    var failed: usize = 0;
    for (0..20) |turn| {
        const seed = @as(u64, testing.random_seed) + turn;
        errdefer std.debug.print("seed={d}\n", .{seed});
        var answers: Answers = .{};
        try run(&world, .{ .plan = .walk, .exact = true, .seed = seed, .faults = faults.all | faults.swarm, .threads = 1 + @as(u32, @intCast(turn % 2)) }, &answers);
        for (0..query_count) |query| switch (answers.outcomes[query]) {
            .ok => {
                succeeded += 1;
                const vertices = answers.vertices[query * k ..][0..k];
                const distances = answers.distances[query * k ..][0..k];
                for (vertices, distances) |vertex, distance| try testing.expectEqual(world.distance(query, @intCast(vertex)), distance);
                for (world.nearest(query)) |vertex| found += @intFromBool(std.mem.indexOfScalar(i64, vertices, vertex) != null);
            },
            .corrupt, .io => {
                failed += 1;
                try testing.expect(answers.pages[query] >= 0);
            },
            else => return error.UnexpectedOutcome,
        };
    }
    errdefer std.debug.print("{d} found by {d} queries\n", .{ found, succeeded });
    try testing.expect(failed > 0 and succeeded > 0);
    try testing.expect(found * 100 >= succeeded * k * 95);
}

test "a table that its checksum does not protect is found damaged, and the error names its page" {
    var world: World = undefined;
    try world.init(13);
    defer world.deinit();
    {
        var reader = try index.Reader.open(testing.allocator, world.path, running_file.options_of(.walk), &world.diagnostic);
        defer reader.deinit();
        const file = try reader.dir.openFile(index.reader.file_pages, .{ .mode = .read_write });
        defer file.close();
        const geometry = reader.page_geometry();
        const bytes = try testing.allocator.alignedAlloc(u8, .@"4", geometry.page_size);
        defer testing.allocator.free(bytes);
        for (0..reader.pages_header.page_count) |number| {
            const offset = reader.pages_header.offset_of(@intCast(number));
            _ = try file.preadAll(bytes, offset);
            const view = try layout.page.View.parse(bytes, geometry, reader.expected_page(@intCast(number)));
            // Neighbors far beyond the last row.
            const begin = view.adjacency_start + if (view.ends.len > 0) view.ends[view.ends.len - 1] else 0;
            @memset(bytes[begin..], 0xff);
            std.mem.writeInt(u64, bytes[0..8], base.checksum(bytes[8..]), .little);
            try file.pwriteAll(bytes, offset);
        }
    }
    var answers: Answers = .{};
    try run(&world, .{ .plan = .walk }, &answers);
    for (answers.outcomes, answers.pages, answers.files) |outcome, page, file| {
        try testing.expectEqual(.corrupt, outcome);
        try testing.expect(page >= 0 and file == 0);
    }
}

test "queries that want the same pages at the same time share their reads" {
    var world: World = undefined;
    try world.init(5);
    defer world.deinit();
    for ([_]search.Plan{ .links_in_memory, .links_on_disk }) |plan| {
        for ([_]u32{ 4, 20 }) |repeats| {
            for (0..3) |seed| {
                errdefer std.debug.print("{any}, {d} times, seed={d}\n", .{ plan, repeats, seed });
                const setting: Setting = .{ .plan = plan, .threads = 1, .queries_in_flight = repeats, .repeats = repeats, .seed = seed };
                var own_setting = setting;
                own_setting.queries_in_flight = 1;
                var own: Answers = .{};
                try run(&world, own_setting, &own);
                var shared: Answers = .{};
                try run(&world, setting, &shared);
                try testing.expectEqual(0, total_of(&own.shared_reads));
                for ([_]*const Answers{ &own, &shared }) |answers| {
                    for (0..query_count) |query| try testing.expectEqual(.ok, answers.outcomes[query]);
                    try testing.expectEqual(answers.device_reads, total_of(&answers.reads));
                    try testing.expect(recall(&world, answers, repeats) >= 0.9); // of few distinct queries
                }
                // Four enter before the first read ends (simulated polls take less), and stay together from then on.
                if (repeats == 4 and plan == .links_in_memory) try testing.expectEqual(own.device_reads, 4 * shared.device_reads);
                try testing.expect(shared.device_reads < own.device_reads / 2);
                if (plan == .links_on_disk) continue;
                try testing.expectEqualSlices(i64, &own.vertices, &shared.vertices);
                for (own.reads, shared.reads, shared.shared_reads) |alone, reads, others| try testing.expectEqual(alone, reads + others);
            }
        }
    }
}
