//! One call of velo_search or velo_submit_segments: its arguments, checked and made a job, and its outcome as a status.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const live_room = @import("live");
const search = @import("search");
const filter_room = @import("filter");
const common = @import("common.zig");
const handle_file = @import("handle.zig");
const handles = @import("handles.zig");
const nearest = live_room.nearest;
const report = common.report;
const Index = handle_file.Index;
const fail = common.fail;

// ---- deltas ----
//
// velo_delta: rows of live data that no segment holds yet, as a search over segments takes them along.

/// As velo_delta.
pub const Delta = extern struct {
    struct_size: u32,
    mask_count: u32,
    view: ?*const live_room.View,
    first: i64,
    masks: ?[*]const ?[*]const u8,
    list_size: u32,
    recall: f32,

    fn checked(self: *const Delta, query_count: u64) error{Reported}!*const live_room.View {
        const view = try common.need("view", self.view);
        if (!(self.recall > 0 and self.recall <= 1)) return report(.invalid_argument, .{ .argument = "recall" }, "recall is above 0 and at most 1, not {d}", .{self.recall});
        if (self.mask_count > 1 and self.mask_count != query_count) return report(.invalid_argument, .{ .argument = "mask_count" }, "{d} masks for {d} queries", .{ self.mask_count, query_count });
        return view;
    }

    /// Its k nearest; the sets of rows that pass are made in `room`.
    fn how(self: *const Delta, room: std.mem.Allocator, view: *const live_room.View, k: usize) error{OutOfMemory}!nearest.How {
        const sets = try room.alloc(?base.BitSet, if (self.masks == null) 0 else self.mask_count);
        for (sets, 0..) |*set, i| {
            set.* = null;
            const bits = self.masks.?[i] orelse continue;
            var made = try base.BitSet.init(room, view.rows);
            for (0..view.rows) |row| {
                if (bits[row / 8] >> @intCast(row % 8) & 1 == 1) made.insert(row);
            }
            set.* = made;
        }
        return .{ .k = k, .recall = self.recall, .list_size = self.list_size, .passing = sets };
    }
};

/// The question of a job to a delta. It must not move, as the job.
pub const AskedOfDelta = struct {
    of_job: search.job.Delta,
    question: nearest.Question,
    arena: std.heap.ArenaAllocator,
    /// Of all queries.
    values: []f32,

    /// The job has its queries; as many threads as given answer it at once.
    pub fn init(self: *AskedOfDelta, theirs: *const Delta, job: *const search.Job, threads: u32) common.Failure!void {
        const given = try common.read(Delta, "delta", theirs);
        const view = try given.checked(job.count);
        const reader = job.segments[0].segment.shared.reader;
        const dim = reader.header.dim_in;
        if (view.shape.dim != dim or !std.mem.eql(u8, @tagName(view.shape.metric), @tagName(reader.metric)))
            return report(.invalid_argument, .{ .argument = "delta" }, "a delta and parts that are searched together have one metric and as many dimensions", .{});
        self.arena = .init(common.allocator);
        errdefer self.arena.deinit();
        const room = self.arena.allocator();
        self.values = try room.alloc(f32, @as(usize, @intCast(job.count)) * dim);
        index.space.convert(job.dtype, job.queries, self.values);
        try self.question.init(common.allocator, view, try given.how(room, view, job.k()), @intCast(@min(threads, job.count)));
        self.of_job = .{ .context = self, .first = given.first, .nearest = answer };
    }

    pub fn deinit(self: *AskedOfDelta) void {
        self.question.deinit();
        self.arena.deinit();
    }

    fn answer(context: *anyopaque, query: u64, within: f32, hits: []search.job.Delta.Hit) search.job.Delta.Found {
        const self: *AskedOfDelta = @ptrCast(@alignCast(context));
        const dim = self.question.view.shape.dim;
        const at: usize = @intCast(query);
        const found = self.question.answer(at, self.values[at * dim ..][0..dim], within, @ptrCast(hits));
        if (query == 0 and self.question.how.recall < 1) nearest.code_some(self.question.view);
        return .{ .count = found.count, .measured = found.visits };
    }
};

/// Of the delta alone: rows and distances with k entries a query.
export fn velo_live_view_search(delta: ?*const Delta, queries: ?[*]const f32, query_count: u32, k: u32, rows_out: ?[*]i64, distances_out: ?[*]f32, counts_out: ?[*]u32, looks_out: ?[*]u32) i32 {
    return common.status_of_call(search_alone(delta, queries, query_count, k, rows_out, distances_out, counts_out, looks_out));
}

fn search_alone(delta: ?*const Delta, queries: ?[*]const f32, query_count: u32, k: u32, rows_out: ?[*]i64, distances_out: ?[*]f32, counts_out: ?[*]u32, looks_out: ?[*]u32) common.Failure!void {
    const given = try common.read(Delta, "delta", delta);
    const view = try given.checked(query_count);
    if (query_count == 0 or k == 0) return;
    const values = try common.need("queries", queries);
    const rows = try common.need("rows_out", rows_out);
    const distances = try common.need("distances_out", distances_out);
    const counts = try common.need("counts_out", counts_out);
    const looks = try common.need("looks_out", looks_out);
    var arena = std.heap.ArenaAllocator.init(common.allocator);
    defer arena.deinit();
    const room = arena.allocator();
    const hits = try room.alloc(live_room.scan.Hit, @as(usize, query_count) * k);
    try nearest.search(common.allocator, view, values[0 .. @as(usize, query_count) * view.shape.dim], try given.how(room, view, k), hits, counts[0..query_count], looks[0..query_count]);
    for (0..query_count) |q| for (0..k) |i| {
        const at = q * k + i;
        const is_hit = i < counts[q];
        rows[at] = if (is_hit) hits[at].row else -1;
        distances[at] = if (is_hit) hits[at].distance else std.math.inf(f32);
    };
    if (given.recall < 1) nearest.code_some(view);
}

// ---- calls ----

/// As velo_search_options.
pub const SearchOptions = extern struct {
    struct_size: u32,
    k: u32,
    list_size: u32,
    recall: f32,
    timeout_us: u64,
    beam_width: u32,
    burst_max: u32,
    sigma: f32,
    filter_plan: i32,
    exact: i32,
    excluded_vertices: ?[*]const u32,
    count_used: i32,
    reserved: u32,
};

/// As velo_search_out. The arrays of counters have the names of search.cost.Cost.
pub const SearchOut = extern struct {
    struct_size: u32 = @sizeOf(SearchOut),
    reserved: u32 = 0,
    vertices: ?[*]i64 = null,
    distances: ?[*]f32 = null,
    counts: ?[*]u32 = null,
    statuses: ?[*]i32 = null,
    error_pages: ?[*]i64 = null,
    reads: ?[*]u32 = null,
    rounds: ?[*]u32 = null,
    bytes_read: ?[*]u64 = null,
    cache_hits: ?[*]u32 = null,
    estimates: ?[*]u32 = null,
    expanded: ?[*]u32 = null,
    filtered: ?[*]u32 = null,
    latency_us: ?[*]u64 = null,
    records_scored: ?[*]u32 = null,
    records_used: ?[*]u32 = null,
    shared_reads: ?[*]u32 = null,
    error_files: ?[*]i32 = null,
    outside: ?[*]u32 = null,

    /// The struct by which one of several queries is answered alone.
    pub fn of_query(self: *const SearchOut, query: u64, k: u32) SearchOut {
        var own = self.*;
        inline for (std.meta.fields(SearchOut)) |field| {
            if (@typeInfo(field.type) != .optional) continue;
            const is_of_k = comptime std.mem.eql(u8, field.name, "vertices") or std.mem.eql(u8, field.name, "distances");
            if (@field(own, field.name)) |array| @field(own, field.name) = array + query * (if (is_of_k) k else 1);
        }
        return own;
    }
};

/// Arguments of every function over an index and search options.
pub const Asked = struct {
    options: SearchOptions,
    parameters: search.Parameters,

    pub fn of(self: *const Index, options: ?*const SearchOptions) error{Reported}!Asked {
        const o = try common.read(SearchOptions, "options", options);
        return .{ .options = o, .parameters = try parameters_of(&o, self.calibration()) };
    }
};

pub fn parameters_of(o: *const SearchOptions, calibration: search.Calibration) error{Reported}!search.Parameters {
    const limits = base.limits.ranges;
    if (!limits.k.holds(o.k)) return report(.invalid_argument, .{ .argument = "k" }, "k is {d}; it must lie within {d} and {d}", .{ o.k, limits.k.min, limits.k.max });
    try common.within(o, .{ "list_size", "beam_width", "burst_max" });
    if (!(o.recall >= 0 and o.recall <= 1)) return report(.invalid_argument, .{ .argument = "recall" }, "recall is {d}; it must lie between 0 and 1", .{o.recall});
    if (o.recall == 1 and o.exact < 0) return report(.invalid_argument, .{ .argument = "exact" }, "a recall of 1 is exact; leave exact out, or ask for less", .{});
    if (o.exact < -1 or o.exact > 1) return report(.invalid_argument, .{ .argument = "exact" }, "exact is {d}; it must be -1, 0 or 1", .{o.exact});
    // Below zero it is left to the search.
    if (std.math.isNan(o.sigma) or o.sigma > limits.sigma.max)
        return report(.invalid_argument, .{ .argument = "sigma" }, "sigma is {d}; it must lie within {d} and {d}", .{ o.sigma, limits.sigma.min, limits.sigma.max });
    return search.parameters.resolve(.{
        .k = o.k,
        .list_size = o.list_size,
        .recall = o.recall,
        .sigma = o.sigma,
        .burst_max = o.burst_max,
        .beam_width = o.beam_width,
        .filter_plan = try common.value_of(search.FilterPlan, common.FilterPlan, "filter_plan", o.filter_plan),
        .count_used = o.count_used != 0,
        .exact = if (o.exact == 0) null else o.exact > 0,
    }, calibration);
}

/// As velo_segment.
pub const Segment = extern struct {
    index: handles.Handle,
    /// The number of its first vertex.
    first: i64 = 0,
    filters: ?[*]const ?*filter_room.Filter,
};

/// The arguments that searches have in common.
pub const Arguments = struct {
    segments: []const Segment,
    /// Of each segment; the call is inside.
    indexes: []const *Index,
    delta: ?*const Delta = null,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filter_count: u64,
    options: ?*const SearchOptions,

    /// Checks them and makes a job of them. `answers` and `segments`, as many as there are segments, must outlive it.
    pub fn job_of(self: *const Arguments, segments: []search.JobSegment, answers: *const search.Answers, on_done: *const fn (*search.Job) void) common.Failure!search.Job {
        const first = self.indexes[0];
        const o = try common.read(SearchOptions, "options", self.options);
        const dtype = try dtype_of(self.dtype);
        if (o.excluded_vertices != null and (self.filter_count > 0 or segments.len > 1))
            return report(.invalid_argument, .{ .argument = "excluded_vertices" }, "excluded_vertices are for searches of one index without a filter", .{});
        const job: search.Job = .{
            .queries = try self.query_bytes(dtype, first.reader.header.dim_in),
            .query_bytes = first.reader.header.dim_in * dtype.bytes(),
            .dtype = dtype,
            .count = self.query_count,
            .segments = segments,
            .excluded = o.excluded_vertices,
            .deadline_us = if (o.timeout_us == 0) 0 else base.nowMicros() +| o.timeout_us,
            .answers = answers,
            .on_done = on_done,
        };
        for (self.segments, self.indexes, segments, 0..) |*one, target, *segment, i| {
            for (self.segments[0..i]) |*other| if (other.index == one.index)
                return report(.invalid_argument, .{ .argument = "parts" }, "part {d} is an index that was given before", .{i});
            segment.* = try self.segment_of(one, target, first, &o);
        }
        if (segments.len > 1) search.introduce(segments);
        for (segments) |*segment| try segment.prepare_filters();
        return job;
    }

    fn segment_of(self: *const Arguments, one: *const Segment, target: *Index, first: *const Index, o: *const SearchOptions) common.Failure!search.JobSegment {
        const reader = &target.reader;
        const parameters = try parameters_of(o, target.calibration());
        if (parameters.every and reader.vectors == null)
            return report(.unsupported, .{ .argument = "recall" }, "a recall of 1 needs the vectors, which this index does not store; build it with store_vectors=True", .{});
        if (o.exact > 0 and reader.vectors == null)
            return report(.unsupported, .{ .argument = "exact" }, "exact distances need the vectors, which this index does not store; build it with store_vectors=True", .{});
        if (target.workers != first.workers)
            return report(.invalid_argument, .{ .argument = "parts" }, "indexes that are searched together share workers: open them with workers_of", .{});
        if (reader.header.dim_in != first.reader.header.dim_in or reader.metric != first.reader.metric)
            return report(.invalid_argument, .{ .argument = "parts" }, "indexes that are searched together have one metric and as many dimensions", .{});
        return .{ .segment = target.segment, .first = one.first, .filters = try self.checked_filters(one, target), .parameters = parameters };
    }

    fn query_bytes(self: *const Arguments, dtype: index.Dtype, dim: u32) error{Reported}![]const u8 {
        const total = std.math.mul(u64, self.query_count, dim * dtype.bytes()) catch
            return report(.invalid_argument, .{ .argument = "queries" }, "{d} queries are too many", .{self.query_count});
        const start: [*]const u8 = @ptrCast(try common.need("queries", self.queries));
        const bytes = start[0..@intCast(total)];
        const place = first_not_finite(dtype, bytes) orelse return bytes;
        const row = place / dim;
        return report(.not_finite, .{ .argument = "queries", .row = @intCast(row) }, "query {d} holds NaN, infinity or a magnitude above {d}", .{ row, index.space.magnitude_max });
    }

    fn checked_filters(self: *const Arguments, one: *const Segment, target: *const Index) error{Reported}![]const ?*const filter_room.Filter {
        if (self.filter_count == 0 or (self.segments.len > 1 and one.filters == null)) return &.{};
        if (self.filter_count > 1 and self.filter_count != self.query_count)
            return report(.invalid_argument, .{ .argument = "filters" }, "{d} filters for {d} queries: give none, one, or one a query", .{ self.filter_count, self.query_count });
        const given = (try common.need("filters", one.filters))[0..@intCast(self.filter_count)];
        for (given, 0..) |handle, i| if (handle) |filter| try target.check_filter(filter, @intCast(i));
        return @ptrCast(given);
    }
};

pub fn dtype_of(code: i32) error{Reported}!index.Dtype {
    return std.enums.fromInt(index.Dtype, code) orelse
        report(.invalid_argument, .{ .argument = "dtype" }, "dtype {d} is unknown", .{code});
}

/// Place of the first element that a search cannot stand, counted over all queries.
fn first_not_finite(dtype: index.Dtype, bytes: []const u8) ?u64 {
    switch (dtype) {
        .f32 => for (std.mem.bytesAsSlice(f32, bytes), 0..) |value, i| {
            if (!(@abs(value) <= index.space.magnitude_max)) return i;
        },
        .f16 => for (std.mem.bytesAsSlice(f16, bytes), 0..) |value, i| {
            if (!std.math.isFinite(value)) return i;
        },
        .u8, .i8 => {},
    }
    return null;
}

/// The output of workers: the caller's arrays. Outcomes become statuses when the job has ended (`write_statuses`).
pub fn answers_of(out: *const SearchOut) search.Answers {
    return .{
        .vertices = out.vertices,
        .distances = out.distances,
        .counts = out.counts,
        .outcomes = @ptrCast(out.statuses),
        .error_pages = out.error_pages,
        .error_files = out.error_files,
        .costs = search.cost.arrays_of(out),
    };
}

pub fn write_statuses(answers: *const search.Answers, query_count: u64) void {
    const outcomes = answers.outcomes orelse return;
    const statuses: [*]i32 = @ptrCast(outcomes);
    for (outcomes[0..@intCast(query_count)], statuses) |outcome, *status| status.* = @intFromEnum(status_of(outcome));
}

fn status_of(outcome: search.Outcome) common.Status {
    return switch (outcome) {
        .ok => .ok,
        .corrupt => .corrupt,
        .io => .io,
        .timeout => .timeout,
        .closed => .closed,
        .canceled => .canceled,
    };
}

/// The status of a job that has ended, with its sentence.
pub fn status_of_job(job: *const search.Job) i32 {
    const page = job.failure_page.load(.acquire);
    const file = switch (job.file_at_fault()) {
        .pages => index.reader.file_pages,
        .vectors => index.reader.file_vectors,
    };
    const outcome = job.outcome();
    const status = status_of(outcome);
    return switch (outcome) {
        .ok => common.ok,
        .corrupt => if (page >= 0)
            fail(status, .{ .file = file, .page = page }, "page {d} of {s} is damaged", .{ page, file })
        else
            fail(status, .{ .file = index.reader.file_links }, "{s} is damaged", .{index.reader.file_links}),
        .io => fail(status, .{ .file = file, .page = page }, "the device failed to read page {d} of {s}", .{ page, file }),
        .timeout => fail(status, .{}, "the search ran into its timeout", .{}),
        .closed => handles.closed(),
        .canceled => fail(status, .{}, "the search was canceled", .{}),
    };
}

const Blocking = struct {
    job: search.Job,
    done: std.Thread.ResetEvent = .{},

    fn on_done(job: *search.Job) void {
        const self: *Blocking = @fieldParentPtr("job", job);
        self.done.set();
    }
};

export fn velo_search(
    handle: handles.Handle,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filters: ?[*]const ?*filter_room.Filter,
    filter_count: u64,
    options: ?*const SearchOptions,
    out: ?*const SearchOut,
) i32 {
    const one: Segment = .{ .index = handle, .filters = filters };
    return velo_search_segments(@ptrCast(&one), 1, null, queries, dtype, query_count, filter_count, options, out);
}

export fn velo_search_segments(
    segments: ?[*]const Segment,
    segment_count: u32,
    delta: ?*const Delta,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filter_count: u64,
    options: ?*const SearchOptions,
    out: ?*const SearchOut,
) i32 {
    var entered: Entered = undefined;
    entered.init(segments, segment_count) catch |err| return common.status_of_call(err);
    defer entered.leave();
    const arguments: Arguments = .{ .segments = entered.segments, .indexes = entered.indexes(), .delta = delta, .queries = queries, .dtype = dtype, .query_count = query_count, .filter_count = filter_count, .options = options };
    // Not `status_of_call`: a job that failed has a sentence of its own.
    return run(&arguments, out) catch |err| common.status_of_call(err);
}

/// The segments that a caller gave, while a call is inside all of them.
pub const Entered = struct {
    segments: []const Segment,
    room: [search.job.segments_max]*Index,

    pub fn init(self: *Entered, segments: ?[*]const Segment, count: u32) error{Reported}!void {
        const given = try common.need("parts", segments);
        const limits = base.limits.ranges.segments;
        if (!limits.holds(count))
            return report(.invalid_argument, .{ .argument = "parts" }, "{d} parts were given; there must be {d} to {d}", .{ count, limits.min, limits.max });
        self.segments = given[0..0];
        errdefer self.leave();
        for (given[0..count], self.room[0..count], 1..) |*segment, *target, entered| {
            target.* = try handles.enter(Index, "index", segment.index);
            self.segments = given[0..entered];
        }
    }

    pub fn indexes(self: *const Entered) []const *Index {
        return self.room[0..self.segments.len];
    }

    pub fn leave(self: *const Entered) void {
        for (self.segments) |*segment| handles.leave(segment.index);
    }
};

fn run(arguments: *const Arguments, out: ?*const SearchOut) common.Failure!i32 {
    const theirs = try common.need("out", out);
    if (arguments.query_count == 0) return common.ok;
    const answers = answers_of(&try common.read(SearchOut, "out", theirs));
    const first = arguments.indexes[0];
    var room: [search.job.segments_max]search.JobSegment = undefined;
    var blocking: Blocking = .{ .job = try arguments.job_of(room[0..arguments.segments.len], &answers, Blocking.on_done) };
    var asked: AskedOfDelta = undefined;
    if (arguments.delta) |delta| {
        try asked.init(delta, &blocking.job, first.workers.threads);
        blocking.job.delta = &asked.of_job;
    }
    defer if (arguments.delta != null) asked.deinit();
    if (!first.workers.engine.answer(&blocking.job)) {
        try first.submit(&blocking.job);
        blocking.done.wait();
    }
    write_statuses(&answers, arguments.query_count);
    return status_of_job(&blocking.job);
}
