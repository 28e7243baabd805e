//! An index of made rows, and an engine over it on the simulated device, for tests.
const std = @import("std");
const index = @import("index");
const search = @import("search");
const SimulatedDevice = @import("device.zig").SimulatedDevice;
const testing = std.testing;

pub const Engine = search.Engine(SimulatedDevice);

pub const Running = struct {
    engine: *Engine,
    segment: *search.Segment,

    pub fn init(shared: *const search.Shared, options: search.EngineOptions) !Running {
        const engine = try Engine.init(testing.allocator, shared, options);
        errdefer engine.deinit();
        return .{ .engine = engine, .segment = try engine.attach(shared, .{ null, null }) };
    }

    /// Calls under way end.
    pub fn deinit(self: *const Running) void {
        self.segment.closing.store(true, .seq_cst);
        self.engine.detach(self.segment);
        self.engine.deinit();
    }
};

/// A job over one segment, and its waiting caller.
pub const Call = struct {
    job: search.Job,
    segment: search.JobSegment,
    done: std.Thread.ResetEvent = .{},

    pub fn on_done(job: *search.Job) void {
        const self: *Call = @fieldParentPtr("job", job);
        self.done.set();
    }

    /// False where the engine is closing.
    pub fn submit(self: *Call, running: *const Running) bool {
        self.segment.segment = running.segment;
        self.job.segments = (&self.segment)[0..1];
        return running.engine.submit(&self.job);
    }
};

/// The options with which a reader is opened for a plan.
pub fn options_of(plan: search.Plan) index.reader.Options {
    return .{ .links = if (plan == .links_on_disk) .on_disk else .in_memory, .page_codes = if (plan == .walk) .always else .never };
}

/// Caches of pages.bin and vectors.bin, each within the budget.
pub fn page_caches_of(reader: *const index.Reader, budget_bytes: usize) !search.PageCaches {
    var caches: search.PageCaches = .{};
    errdefer caches.deinit();
    const stored = reader.vectors.?.geometry;
    caches.of = .{
        try .init(testing.allocator, .{ .page_count = reader.pages_header.page_count, .page_size = reader.pages_header.page_size, .budget_bytes = budget_bytes }),
        try .init(testing.allocator, .{ .page_count = @intCast(stored.page_count(reader.n())), .page_size = stored.page_size, .budget_bytes = budget_bytes }),
    };
    return caches;
}

/// An index of `rows`, which are put into the order of its vertices: external ids are not this room's matter.
pub fn build(path: []const u8, rows: []f32, dim: u32, page_codes: bool, diagnostic: *index.Diagnostic) !void {
    const count = rows.len / dim;
    const builder = try index.Builder.open(testing.allocator, path, .{
        .dim = dim,
        .n = count,
        .metric = .l2,
        .dtype = .f32,
        .record_bits = 5,
        .degree = 24,
        .build_list_size = 48,
        .links_kept = 16,
        .store_vectors = true,
        .page_codes = page_codes,
    }, diagnostic);
    defer builder.close();
    const bytes: [*]const u8 = @ptrCast(rows.ptr);
    try builder.scan(bytes, count, dim * 4, diagnostic);
    try builder.add(bytes, count, dim * 4, diagnostic);
    try builder.run(diagnostic);
    const given = try testing.allocator.dupe(f32, rows);
    defer testing.allocator.free(given);
    for (builder.order.?, 0..) |row, vertex| @memcpy(rows[vertex * dim ..][0..dim], given[row * dim ..][0..dim]);
    try builder.commit(&.{}, null, diagnostic);
}

/// The k nearest rows of a query, by computing every distance.
pub fn nearest(comptime k: usize, query: []const f32, rows: []const f32) [k]u32 {
    var best: [k]u32 = undefined;
    var distances: [k]f32 = @splat(std.math.inf(f32));
    for (0..rows.len / query.len) |vertex| {
        var sum: f32 = 0;
        for (query, rows[vertex * query.len ..][0..query.len]) |a, b| sum += (a - b) * (a - b);
        if (sum >= distances[k - 1]) continue;
        var at: usize = k - 1;
        while (at > 0 and distances[at - 1] > sum) : (at -= 1) {
            distances[at] = distances[at - 1];
            best[at] = best[at - 1];
        }
        distances[at] = sum;
        best[at] = @intCast(vertex);
    }
    return best;
}
