//! Several segments searched as one on the simulated device: against brute force over all of their rows, against each segment alone,
//! and under faults and closing against the same search without.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const search = @import("search");
const faults = @import("device.zig");
const worlds = @import("worlds.zig");
const running_file = @import("running.zig");
const Call = running_file.Call;
const Engine = running_file.Engine;
const testing = std.testing;

const dim = 24;
const k = 10;
const query_count = 16;
/// A large segment, a young one, and one whose rows fill a page.
const sizes = [_]u32{ 2400, 700, 30 };
const n = sizes[0] + sizes[1] + sizes[2];

const Segments = struct {
    tmp: std.testing.TmpDir,
    /// In the order of the vertices of the answers.
    rows: []f32,
    queries: []f32,
    readers: [sizes.len]index.Reader,
    shared: [sizes.len]search.Shared,
    files: [sizes.len]std.fs.File,
    engine: *Engine,
    segments: [sizes.len]*search.Segment,
    diagnostic: index.Diagnostic = .{},

    /// Rows around centers so far apart.
    /// `in_blocks`: the young segment is scanned, instead of navigated.
    fn init(self: *Segments, seed: u64, spread: f32, plan: search.Plan, in_blocks: bool) !void {
        self.* = .{
            .tmp = testing.tmpDir(.{}),
            .rows = try testing.allocator.alloc(f32, n * dim),
            .queries = try testing.allocator.alloc(f32, query_count * dim),
            .readers = undefined,
            .shared = undefined,
            .files = undefined,
            .engine = undefined,
            .segments = undefined,
        };
        var prng = base.Prng.init(seed);
        var centers: [20 * dim]f32 = undefined;
        for (&centers) |*value| value.* = spread * prng.gaussian();
        for ([_][]f32{ self.rows, self.queries }) |vectors| {
            for (0..vectors.len / dim) |i| {
                const center = centers[prng.below(20) * dim ..][0..dim];
                for (vectors[i * dim ..][0..dim], center) |*value, middle| value.* = middle + prng.gaussian();
            }
        }
        var first: usize = 0;
        for (sizes, 0..) |size, i| {
            try self.build(i, self.rows[first * dim ..][0 .. size * dim], plan);
            first += size;
        }
        if (in_blocks) try self.shared[1].open_blocks(.{ .memory_bytes = 0 });
        try testing.expectEqual(in_blocks, self.shared[1].blocks != null);
    }

    fn build(self: *Segments, number: usize, rows: []f32, plan: search.Plan) !void {
        var buffer: [std.fs.max_path_bytes]u8 = undefined;
        const parent = try self.tmp.dir.realpath(".", &buffer);
        var own: [std.fs.max_path_bytes]u8 = undefined;
        const path = try std.fmt.bufPrint(&own, "{s}/{d}.velo", .{ parent, number });
        try running_file.build(path, rows, dim, plan == .walk, &self.diagnostic);
        const reader = &self.readers[number];
        reader.* = try .open(testing.allocator, path, running_file.options_of(plan), &self.diagnostic);
        self.shared[number] = try .init(testing.allocator, reader, plan);
        self.files[number] = try reader.dir.openFile(index.reader.file_pages, .{});
    }

    fn start(self: *Segments, options: struct { threads: u32 = 2, queries_in_flight: u32 = 4, queue_depth: u32 = 8, seed: u64 = 0, faults: u32 = 0 }) !void {
        self.engine = try Engine.init(testing.allocator, &self.shared[0], .{
            .threads = options.threads,
            .queries_in_flight = options.queries_in_flight,
            .queue_depth = options.queue_depth,
            .file = self.files[0].handle,
            .vectors_file = self.vectors_of(0),
            .simulated_seed = options.seed,
            .simulated_faults = options.faults,
        });
        for (&self.segments, 0..) |*segment, i| segment.* = try self.engine.attach(&self.shared[i], if (i == 0) .{ null, null } else .{ self.files[i].handle, self.vectors_of(i) });
    }

    fn vectors_of(self: *const Segments, number: usize) std.posix.fd_t {
        return self.readers[number].vectors.?.file.handle;
    }

    fn stop(self: *Segments) void {
        for (self.segments) |segment| self.engine.detach(segment);
        self.engine.deinit();
    }

    fn deinit(self: *Segments) void {
        for (&self.files) |file| file.close();
        for (&self.shared) |*shared| shared.deinit(testing.allocator);
        for (&self.readers) |*reader| reader.deinit();
        testing.allocator.free(self.rows);
        testing.allocator.free(self.queries);
        self.tmp.cleanup();
    }
};

const Answers = struct {
    vertices: [query_count * k]i64 = @splat(-2),
    distances: [query_count * k]f32 = @splat(0),
    outcomes: [query_count]search.Outcome = @splat(.timeout), // as nothing here ends
    pages: [query_count]i64 = @splat(-1),
    reads: [query_count]u32 = @splat(0),
    rounds: [query_count]u32 = @splat(0),

    fn sinks(self: *Answers) search.Answers {
        return .{ .vertices = &self.vertices, .distances = &self.distances, .outcomes = &self.outcomes, .error_pages = &self.pages, .costs = .{ .reads = &self.reads, .rounds = &self.rounds } };
    }

    fn found(self: *const Answers, segments: *const Segments) f64 {
        var right: usize = 0;
        for (0..query_count) |query| {
            for (running_file.nearest(k, segments.queries[query * dim ..][0..dim], segments.rows)) |vertex| right += @intFromBool(std.mem.indexOfScalar(i64, self.vertices[query * k ..][0..k], vertex) != null);
        }
        return @as(f64, @floatFromInt(right)) / (query_count * k);
    }
};

/// A call over all segments, or over one.
const Asked = struct {
    call: Call,
    sinks: search.Answers,
    segments: [sizes.len]search.JobSegment,

    fn init(self: *Asked, segments: *const Segments, only: ?usize, exact: bool, answers: *Answers) void {
        const parameters = search.parameters.resolve(.{ .k = k, .list_size = 60, .exact = exact }, .{});
        var first: i64 = 0;
        for (&self.segments, segments.segments, sizes) |*one, segment, size| {
            one.* = .{ .segment = segment, .first = first, .parameters = parameters };
            first += size;
        }
        const asked = if (only) |one| self.segments[one..][0..1] else &self.segments;
        if (asked.len > 1) search.introduce(asked);
        self.sinks = answers.sinks();
        self.call = .{ .segment = undefined, .job = .{
            .queries = std.mem.sliceAsBytes(segments.queries),
            .query_bytes = dim * 4,
            .dtype = .f32,
            .count = query_count,
            .segments = asked,
            .answers = &self.sinks,
            .on_done = Call.on_done,
        } };
    }
};

fn ask(segments: *const Segments, only: ?usize, exact: bool, answers: *Answers) !void {
    var asked: Asked = undefined;
    asked.init(segments, only, exact, answers);
    try testing.expect(segments.engine.submit(&asked.call.job));
    asked.call.done.wait();
    for (answers.outcomes) |outcome| try testing.expectEqual(.ok, outcome);
}

test "several segments are searched as one index would be, in as many rounds" {
    var vector_reads: u32 = 0;
    var vector_reads_together: u32 = 0;
    for ([_]struct { search.Plan, bool }{ .{ .links_in_memory, false }, .{ .links_in_memory, true }, .{ .links_on_disk, false }, .{ .walk, false } }) |case| {
        const plan, const in_blocks = case;
        var segments: Segments = undefined;
        try segments.init(5, 0, plan, in_blocks); // neighbors lie on many pages
        defer segments.deinit();
        try segments.start(.{});
        defer segments.stop();
        var coded_reads: u32 = 0;
        var coded_reads_together: u32 = 0;
        for ([_]bool{ false, true }) |exact| {
            errdefer std.debug.print("{t}, in blocks {}, exact {}\n", .{ plan, in_blocks, exact });
            var together: Answers = .{};
            try ask(&segments, null, exact, &together);
            try testing.expect(together.found(&segments) >= 0.95);
            for (0..query_count) |query| try testing.expect(std.sort.isSorted(f32, together.distances[query * k ..][0..k], {}, std.sort.asc(f32)));
            var reads: u32 = 0;
            var rounds: u32 = 0;
            for (0..sizes.len) |one| {
                var alone: Answers = .{};
                try ask(&segments, one, exact, &alone);
                for (alone.reads, alone.rounds) |some, steps| {
                    reads += some;
                    rounds += steps;
                }
            }
            // Each alone reads for k answers of its own, one after the other.
            var reads_together: u32 = 0;
            var rounds_together: u32 = 0;
            for (together.reads, together.rounds) |some, steps| {
                reads_together += some;
                rounds_together += steps;
            }
            errdefer std.debug.print("reads {d} of {d}, rounds {d} of {d}\n", .{ reads_together, reads, rounds_together, rounds });
            // A walk over links on disk reads its way in, however few rows a segment has.
            switch (plan) {
                .links_in_memory => try testing.expect(reads_together <= reads),
                .links_on_disk => try testing.expect(reads_together < reads * 5 / 4),
                // One list holds the candidates of all.
                .walk => try testing.expect(reads_together < reads),
            }
            try testing.expect(rounds_together < rounds * 2 / 3);
            if (exact) {
                vector_reads += reads - coded_reads;
                vector_reads_together += reads_together - coded_reads_together;
            }
            coded_reads = reads;
            coded_reads_together = reads_together;
        }
    }
    // Vectors are read within a bound of all segments, too.
    errdefer std.debug.print("reads of vectors {d} of {d}\n", .{ vector_reads_together, vector_reads });
    try testing.expect(vector_reads_together < vector_reads * 6 / 7);
}

test "thousands of runs of several segments under faults, on several threads: the right answer or an error, and each segment closes" {
    var segments: Segments = undefined;
    try segments.init(6, 2, .links_in_memory, true);
    defer segments.deinit();
    var right: [2]Answers = .{ .{}, .{} };
    try segments.start(.{});
    for (&right, [_]bool{ false, true }) |*answers, exact| try ask(&segments, null, exact, answers);
    segments.stop();
    var failed: u64 = 0;
    var closed: u64 = 0;
    var ended: u64 = 0;
    const runs = worlds.count(1_000, 50, "VELO_FAULT_RUNS");
    for (0..runs) |turn| {
        const seed = worlds.first_seed() + turn;
        errdefer std.debug.print("seed={d} (run {d} of {d})\n", .{ seed, turn, runs });
        var prng = base.Prng.init(seed);
        const exact = prng.below(2) == 0;
        var page_caches: [sizes.len]search.PageCaches = @splat(.{});
        defer for (&page_caches, &segments.shared) |*cache, *shared| {
            shared.page_caches = null;
            cache.deinit();
        };
        // Of pages: it changes nothing but what is read.
        for (&page_caches, &segments.shared) |*cache, *shared| {
            if (prng.below(2) == 0) continue;
            cache.* = try running_file.page_caches_of(shared.reader, @as(usize, 1) << @intCast(14 + prng.below(8)));
            shared.page_caches = cache;
        }
        try segments.start(.{
            .threads = 1 + @as(u32, @intCast(prng.below(3))),
            .queries_in_flight = 1 + @as(u32, @intCast(prng.below(8))),
            .queue_depth = 1 + @as(u32, @intCast(prng.below(12))),
            .seed = seed,
            .faults = faults.all | faults.swarm,
        });
        var answers: Answers = .{};
        var asked: Asked = undefined;
        asked.init(&segments, null, exact, &answers);
        try testing.expect(segments.engine.submit(&asked.call.job));
        // Now and then one segment is taken away under its queries; the others serve the next call.
        const taken = prng.below(8) == 0;
        if (taken) segments.segments[1].close();
        asked.call.done.wait();
        if (taken) {
            var after: Answers = .{};
            var others: Asked = undefined;
            others.init(&segments, 0, exact, &after);
            try testing.expect(segments.engine.submit(&others.call.job));
            others.call.done.wait();
            for (after.outcomes) |outcome| try testing.expect(outcome != .closed);
        }
        segments.stop();
        for (answers.outcomes, 0..) |outcome, query| switch (outcome) {
            .ok => {
                ended += 1;
                errdefer std.debug.print("query {d}: {any} at {any}\n", .{ query, answers.vertices[query * k ..][0..k], answers.distances[query * k ..][0..k] });
                const expected = right[@intFromBool(exact)].vertices[query * k ..][0..k];
                try testing.expectEqualSlices(i64, expected, answers.vertices[query * k ..][0..k]);
            },
            .corrupt, .io => failed += 1,
            .closed => {
                try testing.expect(taken);
                closed += 1;
            },
            else => return error.UnexpectedOutcome,
        };
    }
    if (runs < 50) return;
    try testing.expect(ended > 0 and failed > 0);
}
