//! Thousands of runs of an engine over a device that fails: each run draws plan, cache, queues, threads and faults from
//! its seed. Invariants of every run: each query ends, with the right answer or with an error that names a page; a failed
//! query affects no other; the open index serves the next run.
//!
//! VELO_FAULT_RUNS sets how many runs, `--seed` of `zig build` the first seed; a failure prints the seed of its run.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const index = @import("index");
const search = @import("search");
const cache_room = @import("cache");
const faults = @import("device.zig");
const worlds = @import("worlds.zig");
const whole = @import("search_test.zig");
const World = whole.World;
const running_file = @import("running.zig");
const Call = running_file.Call;
const Running = running_file.Running;
const n = whole.n;
const dim = whole.dim;
const testing = std.testing;

const k = 5;
const list_size = 24;
const query_count = 8;

/// One index, open in all plans for all runs.
const Fixture = struct {
    world: World,
    readers: [plans.len]index.Reader,
    shared: [plans.len]search.Shared,
    file: std.fs.File,

    fn init(self: *Fixture, seed: u64) !void {
        try self.world.init(seed);
        errdefer self.world.deinit();
        for (&self.readers, &self.shared, plans) |*reader, *shared, plan| {
            reader.* = try index.Reader.open(testing.allocator, self.world.path, running_file.options_of(plan), &self.world.diagnostic);
            shared.* = try search.Shared.init(testing.allocator, reader, plan);
        }
        self.file = try self.readers[0].dir.openFile(index.reader.file_pages, .{});
    }

    fn vectors_file(self: *const Fixture) std.posix.fd_t {
        return self.readers[0].vectors.?.file.handle;
    }

    fn deinit(self: *Fixture) void {
        self.file.close();
        for (&self.shared) |*shared| shared.deinit(testing.allocator);
        for (&self.readers) |*reader| reader.deinit();
        self.world.deinit();
    }
};

const plans = std.enums.values(search.Plan);

/// A call and where its results go.
const Asked = struct {
    call: Call,
    answers: search.Answers,
    vertices: []i64,
    distances: []f32,
    outcomes: []search.Outcome,
    pages: []i64,
    files: []i32,
    shared_reads: []u32,

    fn init(self: *Asked, queries: []const f32, exact: bool) !void {
        const count = queries.len / dim;
        self.vertices = try testing.allocator.alloc(i64, count * k);
        self.distances = try testing.allocator.alloc(f32, count * k);
        self.outcomes = try testing.allocator.alloc(search.Outcome, count);
        self.pages = try testing.allocator.alloc(i64, count);
        self.files = try testing.allocator.alloc(i32, count);
        self.shared_reads = try testing.allocator.alloc(u32, count);
        @memset(self.outcomes, .timeout); // as nothing here ends
        @memset(self.pages, -1);
        self.answers = .{
            .vertices = self.vertices.ptr,
            .distances = self.distances.ptr,
            .outcomes = self.outcomes.ptr,
            .error_pages = self.pages.ptr,
            .error_files = self.files.ptr,
            .costs = .{ .shared_reads = self.shared_reads.ptr },
        };
        self.call = .{ .job = .{
            .queries = std.mem.sliceAsBytes(queries),
            .query_bytes = dim * 4,
            .dtype = .f32,
            .count = count,
            .segments = &.{},
            .answers = &self.answers,
            .on_done = Call.on_done,
        }, .segment = .{ .segment = undefined, .parameters = search.parameters.resolve(.{ .k = k, .list_size = list_size, .exact = exact }, .{}) } };
    }

    fn deinit(self: *Asked) void {
        testing.allocator.free(self.vertices);
        testing.allocator.free(self.distances);
        testing.allocator.free(self.outcomes);
        testing.allocator.free(self.pages);
        testing.allocator.free(self.files);
        testing.allocator.free(self.shared_reads);
    }
};

const Tally = struct { right: u64 = 0, failed: u64 = 0, failed_vectors: u64 = 0, closed: u64 = 0, canceled: u64 = 0, shared_reads: u64 = 0 };

/// `right` are the answers of a device without faults, where the plan promises the same ones.
fn judge(asked: *const Asked, reader: *const index.Reader, right: ?[]const i64, closing: bool, tally: *Tally) !void {
    for (asked.shared_reads) |count| tally.shared_reads += count;
    for (0..asked.outcomes.len) |query| {
        errdefer std.debug.print("query {d} of {d}: {t}, page {d} of file {d}, found {any} at {any}, not {any}\n", .{
            query,                               asked.outcomes.len,                                 asked.outcomes[query],
            asked.pages[query],                  asked.files[query],                                 asked.vertices[query * k ..][0..k],
            asked.distances[query * k ..][0..k], if (right) |all| all[query * k ..][0..k] else null,
        });
        try judge_query(asked, query, reader, right, closing, tally);
    }
}

fn judge_query(asked: *const Asked, query: usize, reader: *const index.Reader, right: ?[]const i64, closing: bool, tally: *Tally) !void {
    switch (asked.outcomes[query]) {
        .ok => {
            tally.right += 1;
            const found = asked.vertices[query * k ..][0..k];
            if (right) |answers| try testing.expectEqualSlices(i64, answers[query * k ..][0..k], found);
            for (found, 0..) |vertex, i| {
                try testing.expect(vertex >= 0 and vertex < n);
                try testing.expect(std.mem.indexOfScalar(i64, found[0..i], vertex) == null);
            }
            const distances = asked.distances[query * k ..][0..k];
            try testing.expect(std.sort.isSorted(f32, distances, {}, std.sort.asc(f32)));
        },
        .corrupt, .io => {
            tally.failed += 1;
            const of_vectors = asked.files[query] == 1;
            if (of_vectors) tally.failed_vectors += 1;
            const page_count = if (of_vectors) reader.vectors.?.geometry.page_count(n) else reader.pages_header.page_count;
            try testing.expect(asked.pages[query] >= 0 and asked.pages[query] < page_count);
        },
        .closed => {
            tally.closed += 1;
            try testing.expect(closing);
        },
        .canceled => {
            tally.canceled += 1;
            try testing.expect(asked.call.job.canceled.load(.monotonic));
        },
        else => return error.UnexpectedOutcome,
    }
}

fn answers_without_faults(fixture: *Fixture, which: usize, queries: []const f32, exact: bool) ![]i64 {
    const running: Running = try .init(&fixture.shared[which], .{ .threads = 1, .file = fixture.file.handle, .vectors_file = fixture.vectors_file() });
    defer running.deinit();
    var asked: Asked = undefined;
    try asked.init(queries, exact);
    defer asked.deinit();
    try testing.expect(asked.call.submit(&running));
    asked.call.done.wait();
    var tally: Tally = .{};
    try judge(&asked, &fixture.readers[which], null, false, &tally);
    try testing.expectEqual(queries.len / dim, tally.right);
    return testing.allocator.dupe(i64, asked.vertices);
}

/// Of each plan what a device without faults answers, by estimates and exactly.
const Rights = [plans.len][2][]const i64;

fn run_one(fixture: *Fixture, seed: u64, rights: *const Rights, tally: *Tally) !void {
    var prng = base.Prng.init(seed);
    const which: usize = @intCast(prng.below(plans.len));
    const shared = &fixture.shared[which];
    const exact = prng.below(2) == 0;
    const right = rights[which][@intFromBool(exact)];
    var cache: ?cache_room.Cache = if (prng.below(2) == 0 or plans[which] != .links_on_disk) null else try cache_room.Cache.init(testing.allocator, .{
        .vertex_count = n,
        .budget_bytes = 14_000 + @as(usize, @intCast(prng.below(60_000))),
        .slot_bytes = 96,
    });
    defer if (cache) |*own| own.deinit();
    shared.cache = if (cache) |*own| own else null;
    defer shared.cache = null;
    // Of pages: it changes nothing but what is read.
    var page_caches: search.PageCaches = if (prng.below(2) == 0 or plans[which] != .links_in_memory) .{} else try running_file.page_caches_of(shared.reader, @as(usize, 1) << @intCast(14 + prng.below(10)));
    defer page_caches.deinit();
    shared.page_caches = &page_caches;
    defer shared.page_caches = null;
    const running: Running = try .init(shared, .{
        .threads = 1 + @as(u32, @intCast(prng.below(3))),
        .queries_in_flight = 1 + @as(u32, @intCast(prng.below(8))),
        .queue_depth = 1 + @as(u32, @intCast(prng.below(12))), // a burst is larger: the queue runs full
        .file = fixture.file.handle,
        .vectors_file = fixture.vectors_file(),
        .simulated_seed = seed,
        .simulated_faults = faults.all | faults.swarm,
    });
    var closed = false;
    defer if (!closed) running.deinit();
    // One call, or a call a query, from here at once; now and then the index closes under them.
    const calls: usize = if (prng.below(2) == 0) 1 else query_count;
    const closing = prng.below(8) == 0;
    var asked: [query_count]Asked = undefined;
    const each = query_count / calls;
    // Often the same few queries again, which wait for one another's reads.
    const distinct: u64 = if (prng.below(2) == 0) query_count else 2;
    var queries: [query_count * dim]f32 = undefined;
    var expected: [query_count * k]i64 = undefined;
    for (0..query_count) |i| {
        const drawn: usize = if (distinct == query_count) i else @intCast(prng.below(distinct));
        @memcpy(queries[i * dim ..][0..dim], fixture.world.queries[drawn * dim ..][0..dim]);
        @memcpy(expected[i * k ..][0..k], right[drawn * k ..][0..k]);
    }
    for (asked[0..calls], 0..) |*one, i| try one.init(queries[i * each * dim ..][0 .. each * dim], exact);
    defer for (asked[0..calls]) |*one| one.deinit();
    // Now and then a call is not wanted any more, while others may wait for what it asked for.
    const canceled: ?usize = if (calls > 1 and prng.below(4) == 0) @intCast(prng.below(calls)) else null;
    for (asked[0..calls]) |*one| try testing.expect(one.call.submit(&running));
    if (canceled) |which_call| asked[which_call].call.job.canceled.store(true, .monotonic);
    if (closing) {
        running.deinit();
        closed = true;
    }
    for (asked[0..calls], 0..) |*one, i| {
        one.call.done.wait();
        // Other searches follow what has arrived, and may end elsewhere.
        try judge(one, &fixture.readers[which], if (plans[which] == .links_in_memory) expected[i * each * k ..][0 .. each * k] else null, closing, tally);
    }
}

/// Of so few nothing is known but that each ends well.
const few = 20;

test "thousands of runs under faults, on several threads: the right answer or an error that names its page" {
    var fixture: Fixture = undefined;
    try fixture.init(11);
    defer fixture.deinit();
    var rights: Rights = undefined;
    for (&rights, 0..) |*of_plan, which| for (of_plan, [_]bool{ false, true }) |*right, exact| {
        right.* = try answers_without_faults(&fixture, which, fixture.world.queries[0 .. query_count * dim], exact);
    };
    defer for (rights) |of_plan| for (of_plan) |right| testing.allocator.free(right);
    var tally: Tally = .{};
    const runs = worlds.count(2_000, 100, "VELO_FAULT_RUNS");
    var turn: u64 = 0;
    // Whether a call that is canceled or closed had ended before is up to the scheduler: there are more runs until some had not.
    const enough = if (runs < few) runs else 50 * runs;
    while (turn < runs or (turn < enough and (tally.closed == 0 or tally.canceled == 0))) : (turn += 1) {
        const seed = (@as(u64, testing.random_seed) << 20) + turn;
        errdefer std.debug.print("seed={d} (run {d} of {d})\n", .{ seed, turn, runs });
        try run_one(&fixture, seed, &rights, &tally);
    }
    if (runs < few) return;
    try testing.expect(tally.closed > 0);
    try testing.expect(tally.canceled > 0);
    if (runs < 100) return;
    try testing.expect(tally.right > turn);
    try testing.expect(tally.failed > turn / 10);
    try testing.expect(tally.failed_vectors > turn / 100);
    try testing.expect(tally.shared_reads > turn);
}

test "thousands of queries in one call to two threads, some of them fail" {
    var fixture: Fixture = undefined;
    try fixture.init(12);
    defer fixture.deinit();
    const count: usize = if (builtin.sanitize_thread) 500 else 3000;
    const queries = try testing.allocator.alloc(f32, count * dim);
    defer testing.allocator.free(queries);
    for (0..count) |i| @memcpy(queries[i * dim ..][0..dim], fixture.world.queries[i % query_count * dim ..][0..dim]);
    const right = try answers_without_faults(&fixture, 0, queries[0 .. query_count * dim], false);
    defer testing.allocator.free(right);
    const running: Running = try .init(&fixture.shared[0], .{
        .threads = 2,
        .queue_depth = 16,
        .file = fixture.file.handle,
        .simulated_seed = 12,
        .simulated_faults = faults.Fault.eio_once.mask() | faults.Fault.short.mask() | faults.Fault.bit_flip.mask(),
    });
    defer running.deinit();
    var asked: Asked = undefined;
    try asked.init(queries, false);
    defer asked.deinit();
    try testing.expect(asked.call.submit(&running));
    asked.call.done.wait();
    var found: usize = 0;
    for (0..count) |query| {
        if (asked.outcomes[query] != .ok) {
            // The last attempt at a page with a wrong bit may have been the one that failed otherwise.
            try testing.expect(asked.outcomes[query] == .corrupt or asked.outcomes[query] == .io);
            try testing.expect(asked.pages[query] >= 0);
            continue;
        }
        found += 1;
        try testing.expectEqualSlices(i64, right[query % query_count * k ..][0..k], asked.vertices[query * k ..][0..k]);
    }
    try testing.expect(found > 0);
}

test "one query from each of 64 threads" {
    var fixture: Fixture = undefined;
    try fixture.init(13);
    defer fixture.deinit();
    const right = try answers_without_faults(&fixture, 0, fixture.world.queries[0 .. query_count * dim], false);
    defer testing.allocator.free(right);
    const running: Running = try .init(&fixture.shared[0], .{
        .threads = 2,
        .queries_in_flight = 4,
        .queue_depth = 4,
        .file = fixture.file.handle,
        .simulated_seed = 13,
        .simulated_faults = faults.Fault.late.mask() | faults.Fault.reordered.mask() | faults.Fault.again.mask(),
    });
    defer running.deinit();
    const Caller = struct {
        running: *const Running,
        asked: Asked = undefined,
        taken: bool = false,

        fn ask(self: *@This()) void {
            self.taken = self.asked.call.submit(self.running);
            if (self.taken) self.asked.call.done.wait();
        }
    };
    var callers: [64]Caller = undefined;
    for (&callers, 0..) |*caller, i| {
        caller.* = .{ .running = &running };
        try caller.asked.init(fixture.world.queries[i % query_count * dim ..][0..dim], false);
    }
    defer for (&callers) |*caller| caller.asked.deinit();
    var threads: [64]std.Thread = undefined;
    for (&threads, &callers) |*thread, *caller| thread.* = try std.Thread.spawn(.{ .stack_size = 256 * 1024 }, Caller.ask, .{caller});
    for (threads) |thread| thread.join();
    for (&callers, 0..) |*caller, i| {
        try testing.expect(caller.taken);
        try testing.expectEqual(.ok, caller.asked.outcomes[0]);
        try testing.expectEqualSlices(i64, right[i % query_count * k ..][0..k], caller.asked.vertices);
    }
}
