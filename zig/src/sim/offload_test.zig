//! Calls that a simulated GPU navigates for, against the same calls by workers alone.
const std = @import("std");
const index = @import("index");
const search = @import("search");
const gpu = @import("gpu");
const offload = @import("offload");
const running_file = @import("running.zig");
const search_test = @import("search_test.zig");
const World = search_test.World;
const Engine = running_file.Engine;
const Running = running_file.Running;
const Call = running_file.Call;
const testing = std.testing;

const k = 10;
const query_count = search_test.query_count;
const dim = search_test.dim;

const Answers = struct {
    vertices: [query_count * k]i64 = @splat(-2),
    distances: [query_count * k]f32 = @splat(0),
    counts: [query_count]u32 = @splat(0),
    outcomes: [query_count]search.Outcome = @splat(.io),
    expanded: [query_count]u32 = @splat(0),

    fn sinks(self: *Answers) search.Answers {
        return .{ .vertices = &self.vertices, .distances = &self.distances, .counts = &self.counts, .outcomes = &self.outcomes, .costs = .{ .expanded = &self.expanded } };
    }
};

/// An open index over a world, and its workers.
const Setup = struct {
    world: World,
    reader: index.Reader,
    shared: search.Shared,
    running: Running,
    queries_least: u32,

    fn init(self: *Setup, seed: u64) !void {
        const world = &self.world;
        try world.init(seed);
        errdefer world.deinit();
        self.queries_least = 1;
        self.reader = try index.Reader.open(testing.allocator, world.path, running_file.options_of(.links_in_memory), &world.diagnostic);
        errdefer self.reader.deinit();
        self.shared = try search.Shared.init(testing.allocator, &self.reader, .links_in_memory);
        errdefer self.shared.deinit(testing.allocator);
        self.running = try .init(&self.shared, .{ .threads = 2, .queries_in_flight = 4, .file = self.reader.pages_file.handle, .vectors_file = self.reader.vectors.?.file.handle });
    }

    fn deinit(self: *Setup) void {
        self.running.deinit();
        self.shared.deinit(testing.allocator);
        self.reader.deinit();
        self.world.deinit();
    }

    fn workers(self: *Setup) offload.Workers {
        return .{ .context = self.running.engine, .submit_part = submit_part };
    }

    fn submit_part(context: *anyopaque, job: *search.Job) void {
        const engine: *Engine = @ptrCast(@alignCast(context));
        engine.submit_part(job);
    }

    const Way = union(enum) { workers, gpu: *offload.Navigator };

    /// Waits for the answers.
    fn ask(self: *Setup, way: Way, parameters: search.Parameters, answers: *Answers) !void {
        const sinks = answers.sinks();
        var call = self.call_of(parameters, &sinks);
        call.segment.segment = self.running.segment;
        call.job.segments = (&call.segment)[0..1];
        const taken = switch (way) {
            .workers => self.running.engine.submit(&call.job),
            .gpu => |navigator| navigator.submit(&call.job, self.queries_least, self.workers()) or self.running.engine.submit(&call.job),
        };
        try testing.expect(taken);
        call.done.wait();
    }

    fn call_of(self: *const Setup, parameters: search.Parameters, sinks: *const search.Answers) Call {
        return .{
            .segment = .{ .segment = undefined, .parameters = parameters },
            .job = .{
                .queries = std.mem.sliceAsBytes(self.world.queries),
                .query_bytes = dim * 4,
                .dtype = .f32,
                .count = query_count,
                .segments = &.{},
                .answers = sinks,
                .on_done = Call.on_done,
            },
        };
    }
};

fn parameters_of(list_size: u32) search.Parameters {
    return search.parameters.resolve(.{ .k = k, .list_size = list_size }, .{});
}

fn open(options: offload.Options, diagnostic: *gpu.driver.Diagnostic) !*offload.Navigator {
    var card = try gpu.driver.Card.open(try .init(&gpu.fake.api, diagnostic), 0, diagnostic);
    return offload.Navigator.open(testing.allocator, card, options, diagnostic) catch |err| {
        card.close();
        return err;
    };
}

/// Of both the same neighbors, but for a few that lie at the end of a list.
fn expect_alike(expected: *const Answers, found: *const Answers) !void {
    var same: u32 = 0;
    for (0..query_count) |q| {
        try testing.expectEqual(.ok, found.outcomes[q]);
        try testing.expectEqual(k, found.counts[q]);
        for (found.vertices[q * k ..][0..k]) |vertex| same += @intFromBool(std.mem.indexOfScalar(i64, expected.vertices[q * k ..][0..k], vertex) != null);
    }
    try testing.expect(same >= query_count * k - query_count * k / 100);
}

test "batches that a GPU navigated are answered as by workers alone, in threads" {
    var setup: Setup = undefined;
    try setup.init(3);
    defer setup.deinit();
    for ([_]u32{ 20, 60, 512 }) |list_size| {
        var parameters = parameters_of(list_size);
        var expected: Answers = .{};
        try setup.ask(.workers, parameters, &expected);
        for ([_]u32{ 1, 7, query_count }) |batch_max| {
            const fake = try gpu.fake.install(testing.allocator, .{ .kernels = &gpu.host.kernels });
            defer gpu.fake.remove();
            var diagnostic: gpu.driver.Diagnostic = .{};
            const navigator = try open(.{ .batch_max = batch_max, .threads = 2 }, &diagnostic);
            const resident = try navigator.add(&setup.shared, &diagnostic);
            var found: Answers = .{};
            try setup.ask(.{ .gpu = navigator }, parameters, &found);
            try expect_alike(&expected, &found);
            const batches = (query_count + batch_max - 1) / batch_max;
            try testing.expectEqual(offload.Counts{ .batches = batches, .queries = query_count, .busy_us = navigator.counts.busy_us }, navigator.counts);
            try testing.expectEqual(batches, fake.launches);
            // However many batches a call has, two are on the GPU at a time.
            try testing.expect(fake.used_bytes <= resident.bytes + 2 * (1 << 20));
            parameters.exact = true; // from the stored vectors: the same bound, burst and finish
            try setup.ask(.{ .gpu = navigator }, parameters, &found);
            parameters.exact = false;
            for (found.distances, found.vertices, 0..) |distance, vertex, i| try testing.expectEqual(setup.world.distance(i / k, @intCast(vertex)), distance);
            navigator.remove(resident);
            navigator.close();
            try testing.expect(fake.is_empty());
        }
    }
}

test "a batch is bounded by its slot, and calls of ten million queries are cut into whole ones" {
    const largest = 10_000_000;
    var longest: u64 = 0;
    for ([_]u64{ 1, 255, 256, 4095, 4096, 100_000, largest }) |count| {
        // From short codes with a list of one to many segments with lists of 512 and the most dimensions.
        for ([_]u64{ 60, 1000, 70_000, 1 << 30 }) |query_bytes| {
            const size = offload.batch_size(count, query_bytes, 8192);
            try testing.expect(size >= 1 and size <= 8192 and size <= count);
            if (size > 1) try testing.expect(size * query_bytes < offload.slot_bytes_max);
            // The cuts of `Navigator.take`.
            var next: u64 = 0;
            var batches: u64 = 0;
            while (next < count) : (batches += 1) next += @min(size, count - next);
            try testing.expectEqual(count, next);
            try testing.expectEqual((count + size - 1) / size, batches);
            longest = @max(longest, batches);
        }
    }
    try testing.expectEqual(1221, largest / offload.batch_size(largest, 1000, 8192) + 1);
    try testing.expectEqual(largest, longest); // one query for each batch where it takes more than a slot
}

test "calls that are short, long of list or cut off stay with the workers" {
    var setup: Setup = undefined;
    try setup.init(5);
    defer setup.deinit();
    const fake = try gpu.fake.install(testing.allocator, .{ .kernels = &gpu.host.kernels });
    defer gpu.fake.remove();
    var diagnostic: gpu.driver.Diagnostic = .{};
    const navigator = try open(.{}, &diagnostic);
    defer navigator.close();
    var answers: Answers = .{};
    try setup.ask(.{ .gpu = navigator }, parameters_of(60), &answers); // not resident
    const resident = try navigator.add(&setup.shared, &diagnostic);
    defer navigator.remove(resident);
    setup.queries_least = query_count + 1;
    try setup.ask(.{ .gpu = navigator }, parameters_of(60), &answers);
    setup.queries_least = 1;
    try setup.ask(.{ .gpu = navigator }, parameters_of(gpu.layout.list_size_max + 1), &answers);
    try setup.ask(.{ .gpu = navigator }, search.parameters.resolve(.{ .k = k, .recall = 1 }, .{}), &answers);
    try testing.expectEqual(0, fake.launches);
    for (answers.outcomes) |outcome| try testing.expectEqual(.ok, outcome);

    const sinks = answers.sinks();
    var call = setup.call_of(parameters_of(60), &sinks);
    call.segment.segment = setup.running.segment;
    call.job.segments = (&call.segment)[0..1];
    call.job.canceled.store(true, .monotonic);
    try testing.expect(navigator.submit(&call.job, 1, setup.workers()));
    call.done.wait();
    try testing.expectEqual(.canceled, call.job.outcome());
    for (answers.outcomes) |outcome| try testing.expectEqual(.canceled, outcome);
    try testing.expectEqual(0, fake.launches);
}

test "whichever call of the driver fails, all queries are answered and nothing is left behind" {
    var setup: Setup = undefined;
    try setup.init(7);
    defer setup.deinit();
    var expected: Answers = .{};
    try setup.ask(.workers, parameters_of(60), &expected);
    var points: u32 = 0;
    for ([_]enum { once, memory, lost }{ .once, .memory, .lost }) |kind| {
        var number: u64 = 1;
        while (true) : (number += 1) {
            const fake = try gpu.fake.install(testing.allocator, switch (kind) {
                .once => .{ .kernels = &gpu.host.kernels, .fail_call = number, .failure = .launch_out_of_resources },
                .memory => .{ .kernels = &gpu.host.kernels, .fail_call = number, .failure = .out_of_memory },
                .lost => .{ .kernels = &gpu.host.kernels, .lost_from = number },
            });
            defer gpu.fake.remove();
            var diagnostic: gpu.driver.Diagnostic = .{};
            const opened = open(.{ .batch_max = 13 }, &diagnostic);
            if (opened) |navigator| {
                const added = navigator.add(&setup.shared, &diagnostic);
                if (added) |resident| {
                    var found: Answers = .{};
                    try setup.ask(.{ .gpu = navigator }, parameters_of(60), &found);
                    try expect_alike(&expected, &found);
                    const state = navigator.state();
                    if (state.counts.failed_queries > 0) try testing.expect(state.failure.len > 0);
                    if (kind != .memory and state.counts.failed_queries > 0) try testing.expect(state.is_off);
                    navigator.remove(resident);
                } else |_| try testing.expect(diagnostic.len > 0);
                navigator.close();
            } else |_| try testing.expect(diagnostic.len > 0);
            try testing.expect(fake.is_empty());
            const met = if (kind == .lost) fake.lost else fake.counted >= number;
            if (!met) break;
            points += 1;
        }
    }
    try testing.expect(points > 150);
}

test "a segment that does not fit names what it takes and what is free" {
    var setup: Setup = undefined;
    try setup.init(9);
    defer setup.deinit();
    _ = try gpu.fake.install(testing.allocator, .{ .kernels = &gpu.host.kernels, .budget_bytes = 10_000 });
    defer gpu.fake.remove();
    var diagnostic: gpu.driver.Diagnostic = .{};
    const navigator = try open(.{}, &diagnostic);
    defer navigator.close();
    try testing.expectError(error.DeviceMemory, navigator.add(&setup.shared, &diagnostic));
    try testing.expect(diagnostic.needed_bytes > 10_000 and diagnostic.free_bytes == 10_000);
    try testing.expect(std.mem.indexOf(u8, diagnostic.message(), "10000 free of 10000") != null);
}

test "lists that are none are refused, and the query is navigated for again" {
    var setup: Setup = undefined;
    try setup.init(11);
    defer setup.deinit();
    var expected: Answers = .{};
    try setup.ask(.workers, parameters_of(60), &expected);
    // Zeros: a list of one vertex over and over.
    const zeros = struct {
        fn run(arguments: []const []const u8, _: u32, _: u32) void {
            const batch = std.mem.bytesToValue(gpu.layout.Batch, arguments[1]);
            const bytes = batch.counters + batch.count * @sizeOf(gpu.layout.Counters) - batch.candidates;
            @memset(@as([*]u8, @ptrFromInt(batch.candidates))[0..bytes], 0);
            for (@as([*]gpu.layout.Counters, @ptrFromInt(batch.counters))[0..batch.count]) |*one| one.len = batch.list_size;
        }
    };
    const broken = [_]gpu.fake.Kernel{.{ .name = gpu.search_kernel_name, .argument_bytes = &gpu.host.argument_bytes, .run = zeros.run }};
    _ = try gpu.fake.install(testing.allocator, .{ .kernels = &broken });
    defer gpu.fake.remove();
    var diagnostic: gpu.driver.Diagnostic = .{};
    const navigator = try open(.{}, &diagnostic);
    defer navigator.close();
    const resident = try navigator.add(&setup.shared, &diagnostic);
    defer navigator.remove(resident);
    var found: Answers = .{};
    try setup.ask(.{ .gpu = navigator }, parameters_of(60), &found);
    try testing.expectEqualSlices(i64, &expected.vertices, &found.vertices);
    try testing.expectEqual(query_count, navigator.state().counts.refused_lists);
}

test "a segment that is closed while batches of a call are under way ends the call, in threads" {
    var setup: Setup = undefined;
    try setup.init(13);
    defer setup.deinit();
    const fake = try gpu.fake.install(testing.allocator, .{ .kernels = &gpu.host.kernels });
    defer gpu.fake.remove();
    var diagnostic: gpu.driver.Diagnostic = .{};
    const navigator = try open(.{ .batch_max = 1 }, &diagnostic);
    const resident = try navigator.add(&setup.shared, &diagnostic);
    var answers: Answers = .{};
    const sinks = answers.sinks();
    var late = setup.call_of(parameters_of(60), &sinks);
    late.segment.segment = setup.running.segment;
    late.job.segments = (&late.segment)[0..1];
    late.job.deadline_us = 1;
    try testing.expect(navigator.submit(&late.job, 1, setup.workers()));
    late.done.wait();
    try testing.expectEqual(.timeout, late.job.outcome());
    try testing.expectEqual(0, fake.launches);

    var call = setup.call_of(parameters_of(60), &sinks);
    call.segment.segment = setup.running.segment;
    call.job.segments = (&call.segment)[0..1];
    try testing.expect(navigator.submit(&call.job, 1, setup.workers()));
    setup.running.segment.close(); // returns when no search is inside
    try testing.expect(call.done.isSet());
    for (answers.outcomes) |outcome| try testing.expect(outcome == .ok or outcome == .closed);
    try testing.expect(!navigator.submit(&call.job, 1, setup.workers()));
    navigator.remove(resident);
    navigator.close();
    try testing.expect(fake.is_empty());
}
