//! velo_index of velo.h: opening, searching, closing.
const std = @import("std");
const base = @import("base");
const io = @import("io");
const index = @import("index");
const search = @import("search");
const filter_room = @import("filter");
const build_options = @import("build_options");
const common = @import("common.zig");
const device = @import("device.zig");
const live = @import("live.zig");
const tickets = @import("tickets.zig");
const fail = common.fail;
const ok = common.ok;

pub const OpenOptions = extern struct {
    struct_size: u32,
    io: i32,
    plan: i32,
    threads: u32,
    memory_bytes: u64,
    links_kept: u32,
    queries_in_flight: u32,
    buffered: i32,
    simulated_seed: u64,
    simulated_faults: u32,
    queue_depth: u32,
    cache_share: f64,
    cache_policy: u32,
    cache_unit: u32,
};

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
    flags: u32,
    strict_order: i32,
    prefetch_off: i32,
    staleness: u32,
    excluded_vertices: ?[*]const u32,
    exact: i32,
    reserved: u32,
};

pub const IndexInfo = extern struct {
    struct_size: u32,
    dim: u32,
    n: u64,
    metric: i32,
    dtype: i32,
    memory_bits: u32,
    record_bits: u32,
    degree: u32,
    links_built: u32,
    links_kept: u32,
    page_size: u32,
    page_count: u64,
    records_per_page: f64,
    edges_per_vertex: f64,
    adjacency_bits_per_edge: f64,
    threads: u32,
    queries_in_flight: u32,
    plan: i32,
    stores_vectors: i32,
    memory_codes_bytes: u64,
    memory_links_bytes: u64,
    memory_cache_bytes: u64,
    memory_pages_bytes: u64,
    memory_workers_bytes: u64,
    memory_budget_bytes: u64,
    device: device.DeviceInfo,
    uuid: [40]u8,
    page_links: i32,
};

const Engines = union(enum) {
    uring: *search.Engine(io.Uring),
    threads: *search.Engine(io.Threads),
    simulated: if (build_options.simulated) *search.Engine(@import("sim").Device) else noreturn,
};

pub const Index = struct {
    process: i32,
    reader: index.Reader,
    shared: search.Shared,
    engine: Engines,
    cache: ?search.Cache,
    pages_fd: std.posix.fd_t,
    vectors_fd: ?std.posix.fd_t,
    device: device.DeviceInfo,
    threads: u32,
    queries_in_flight: u32,
    memory_budget_bytes: u64,
    /// Calls under way; closing waits for them.
    calls: std.atomic.Value(u32) = .init(0),
    closing: std.atomic.Value(bool) = .init(false),
    completed: tickets.Completed,

    fn submit(self: *Index, job: *search.Job) bool {
        return switch (self.engine) {
            inline else => |engine| engine.submit(job),
        };
    }

    /// A call begins: refuses after a fork and while closing.
    pub fn enter(self: *Index) ?i32 {
        if (self.process != common.process()) return common.forked();
        _ = self.calls.fetchAdd(1, .acquire);
        if (self.closing.load(.acquire)) {
            self.leave();
            return closed();
        }
        return null;
    }

    /// What the build measured for the plan in use.
    pub fn calibration(self: *const Index) search.Calibration {
        return .of(self.reader.manifest(), self.shared.plan, self.reader.links_kept);
    }

    fn close_files(self: *Index) void {
        std.posix.close(self.pages_fd);
        if (self.vectors_fd) |fd| std.posix.close(fd);
    }

    pub fn leave(self: *Index) void {
        _ = self.calls.fetchSub(1, .release);
    }
};

fn closed() i32 {
    return fail(.closed, .{}, "the index was closed", .{});
}

export fn velo_index_open(path: ?[*:0]const u8, options: ?*const OpenOptions, index_out: ?*?*Index) i32 {
    const folder = path orelse return common.null_argument("path");
    const given = options orelse return common.null_argument("options");
    const out = index_out orelse return common.null_argument("index_out");
    const o = common.versioned(OpenOptions, given) orelse return common.size_error("options", given.struct_size);
    if (o.plan < 0 or o.plan > 2) return fail(.invalid_argument, .{ .argument = "plan" }, "plan {d} is unknown", .{o.plan});
    if (o.io < 0 or o.io > 3) return fail(.invalid_argument, .{ .argument = "io" }, "io {d} is unknown", .{o.io});
    inline for (.{ "threads", "queries_in_flight", "queue_depth" }) |name| {
        if (common.outside(name, @field(o, name))) |status| return status;
    }
    if (o.cache_policy > 4) return fail(.invalid_argument, .{ .argument = "cache_policy" }, "cache_policy {d} is unknown", .{o.cache_policy});
    if (o.cache_unit > 2) return fail(.invalid_argument, .{ .argument = "cache_unit" }, "cache_unit {d} is unknown", .{o.cache_unit});
    const share = base.limits.ranges.cache_share_percent;
    // A whole percent divided by 100 is the literal's double, so that 0.95 itself is within.
    if (std.math.isNan(o.cache_share) or o.cache_share > @as(f64, share.max) / 100)
        return fail(.invalid_argument, .{ .argument = "cache_share" }, "cache_share is {d}; it must lie within {d} and {d} percent", .{ o.cache_share, share.min, share.max });
    const self = common.allocator.create(Index) catch return common.out_of_memory();
    const status = open(self, std.mem.span(folder), o);
    if (status != ok) {
        common.allocator.destroy(self);
        return status;
    }
    out.* = self;
    return ok;
}

fn open(self: *Index, path: [:0]const u8, o: OpenOptions) i32 {
    var diagnostic: index.Diagnostic = .{};
    const threads = common.thread_count(o.threads);
    const reader_options: index.reader.Options = .{
        .links_kept = if (o.links_kept == 0 or o.links_kept == std.math.maxInt(u32)) null else o.links_kept,
        .memory_bytes = o.memory_bytes - reserved_for_cache(o),
        .links = switch (o.plan) {
            0 => .where_room,
            1 => .in_memory,
            else => .on_disk,
        },
        .threads = threads,
    };
    self.reader = index.Reader.open(common.allocator, path, reader_options, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    const plan: search.Plan = if (self.reader.links == null) .links_on_disk else .links_in_memory;
    self.shared = search.Shared.init(common.allocator, &self.reader, plan) catch {
        self.reader.deinit();
        return common.out_of_memory();
    };
    self.completed = tickets.Completed.init() catch |err| {
        self.shared.deinit(common.allocator);
        self.reader.deinit();
        return switch (err) {
            error.SystemResources => common.out_of_memory(),
            else => fail(.io, .{}, "the system gave no eventfd: {s}", .{index.diagnostic.reason(err)}),
        };
    };
    self.process = common.process();
    self.calls = .init(0);
    self.closing = .init(false);
    self.threads = threads;
    self.queries_in_flight = if (o.queries_in_flight == 0) search.engine.queries_in_flight_default else o.queries_in_flight;
    self.memory_budget_bytes = o.memory_bytes;
    // Navigation in memory leaves a cache little to do where queries do not repeat: there it is only made when asked for.
    const cache_budget = if (plan == .links_on_disk or o.cache_share > 0) o.memory_bytes else 0;
    self.cache = search.open_cache(common.allocator, &self.reader, cache_budget, @enumFromInt(o.cache_policy), self.reader.header.rotation_seed) catch {
        self.completed.deinit();
        self.shared.deinit(common.allocator);
        self.reader.deinit();
        return common.out_of_memory();
    };
    if (self.cache) |*cache| self.shared.cache = cache;
    self.shared.cache_unit = @enumFromInt(o.cache_unit);
    const status = start(self, path, o);
    if (status != ok) {
        if (self.cache) |*cache| cache.deinit();
        self.completed.deinit();
        self.shared.deinit(common.allocator);
        self.reader.deinit();
    }
    return status;
}

/// Slots get what links leave over, or a share of the budget that the caller named.
fn reserved_for_cache(o: OpenOptions) u64 {
    if (!(o.cache_share > 0)) return 0;
    return @intFromFloat(@as(f64, @floatFromInt(o.memory_bytes)) * o.cache_share);
}

fn start(self: *Index, path: [:0]const u8, o: OpenOptions) i32 {
    const pages_path = std.fmt.allocPrintSentinel(common.allocator, "{s}/{s}", .{ path, index.reader.file_pages }, 0) catch return common.out_of_memory();
    defer common.allocator.free(pages_path);
    const direct = o.buffered == 0;
    const pages = io.open_pages(pages_path, direct) catch |err|
        return fail(.io, .{ .file = index.reader.file_pages }, "cannot open {s}: {s}", .{ index.reader.file_pages, index.diagnostic.reason(err) });
    self.pages_fd = pages.fd;
    self.vectors_fd = null;
    if (self.reader.vectors != null) {
        const vectors_path = std.fmt.allocPrintSentinel(common.allocator, "{s}/{s}", .{ path, index.reader.file_vectors }, 0) catch {
            std.posix.close(self.pages_fd);
            return common.out_of_memory();
        };
        defer common.allocator.free(vectors_path);
        const vectors = io.open_pages(vectors_path, direct) catch |err| {
            std.posix.close(self.pages_fd);
            return fail(.io, .{ .file = index.reader.file_vectors }, "cannot open {s}: {t}", .{ index.reader.file_vectors, err });
        };
        self.vectors_fd = vectors.fd;
    }
    const queue_depth = if (o.queue_depth == 0) search.engine.queue_depth_default else o.queue_depth;
    const engine_options: search.EngineOptions = .{
        .threads = self.threads,
        .queries_in_flight = self.queries_in_flight,
        .adaptive = o.queries_in_flight == 0,
        .queue_depth = queue_depth,
        .file = pages.fd,
        .vectors_file = self.vectors_fd,
        .simulated_seed = o.simulated_seed,
        .simulated_faults = o.simulated_faults,
    };
    const status = start_engine(self, o, pages, direct, engine_options);
    if (status != ok) self.close_files();
    return status;
}

fn start_engine(self: *Index, o: OpenOptions, pages: io.Pages, direct: bool, options: search.EngineOptions) i32 {
    if (build_options.simulated) {
        if (o.io == 0 or o.io == 3) {
            self.device = device.simulated(options.queue_depth);
            self.engine = .{ .simulated = search.Engine(@import("sim").Device).init(common.allocator, &self.shared, options) catch |err| return engine_failed(err) };
            return ok;
        }
    }
    const wanted = device.wanted(o.io) orelse return fail(.invalid_argument, .{ .argument = "io" }, "the simulated device is only in libvelo_sim", .{});
    const report = io.probe.choose(pages.fd, pages.direct, pages.direct_errno, direct, wanted, options.queue_depth);
    if (report.refused(wanted)) return fail(.permission, .{ .argument = "io" }, "{s}", .{report.reason.slice()});
    self.device = device.info_of(&report);
    switch (report.kind) {
        .uring => if (search.Engine(io.Uring).init(common.allocator, &self.shared, options)) |engine| {
            self.engine = .{ .uring = engine };
        } else |err| {
            // The probe's small ring was allowed, but not these: locked memory or descriptors ran out.
            if (wanted == .uring or err == error.OutOfMemory) return engine_failed(err);
            const threads = io.probe.choose(pages.fd, pages.direct, pages.direct_errno, direct, .threads, options.queue_depth);
            self.device = device.info_of(&threads);
            common.put_text(&self.device.reason, "io_uring works, but the system refused rings of the size asked for, so threads with pread are used.");
            common.put_text(&self.device.advice, "Raise the limit of locked memory (ulimit -l), or ask for fewer threads or a smaller queue_depth.");
            self.engine = .{ .threads = search.Engine(io.Threads).init(common.allocator, &self.shared, options) catch |second| return engine_failed(second) };
        },
        else => self.engine = .{ .threads = search.Engine(io.Threads).init(common.allocator, &self.shared, options) catch |err| return engine_failed(err) },
    }
    return ok;
}

fn engine_failed(err: anyerror) i32 {
    return switch (err) {
        error.ThreadFailed => fail(.io, .{}, "cannot start the search workers: the system gave no thread (limits of processes, ulimit -u, and of address space, ulimit -v)", .{}),
        else => fail(.out_of_memory, .{}, "cannot start the search workers: {t}", .{err}),
    };
}

export fn velo_index_close(handle: ?*Index) i32 {
    const self = handle orelse return ok;
    // In a child the workers do not exist; the parent's descriptors and memory end with the child.
    if (self.process != common.process()) return ok;
    if (self.closing.swap(true, .acq_rel)) return closed();
    // Ends what is under way; then no worker touches what goes away below.
    switch (self.engine) {
        inline else => |engine| engine.deinit(),
    }
    while (self.calls.load(.acquire) > 0) std.Thread.sleep(50 * std.time.ns_per_us);
    self.close_files();
    self.completed.deinit();
    if (self.cache) |*cache| cache.deinit();
    self.shared.deinit(common.allocator);
    self.reader.deinit();
    common.allocator.destroy(self);
    base.give_back();
    return ok;
}

export fn velo_index_info_get(handle: ?*Index, info_out: ?*IndexInfo) i32 {
    const self = handle orelse return common.null_argument("index");
    const out = info_out orelse return common.null_argument("info_out");
    if (self.enter()) |status| return status;
    defer self.leave();
    const reader = &self.reader;
    const m = reader.manifest();
    var info: IndexInfo = std.mem.zeroes(IndexInfo);
    info.dim = m.dim;
    info.n = m.n;
    info.metric = @intFromEnum(reader.metric);
    info.dtype = @intFromEnum(reader.dtype);
    info.memory_bits = m.memory_bits;
    info.record_bits = m.record_bits;
    info.degree = m.degree;
    info.links_built = m.links_built;
    info.links_kept = reader.links_kept;
    info.page_size = m.page_size;
    info.page_count = m.page_count;
    const n: f64 = @floatFromInt(m.n);
    info.records_per_page = n / @as(f64, @floatFromInt(@max(1, m.page_count)));
    info.edges_per_vertex = @as(f64, @floatFromInt(m.edges)) / n;
    info.adjacency_bits_per_edge = @as(f64, @floatFromInt(m.adjacency_bits)) / @as(f64, @floatFromInt(@max(1, m.edges)));
    info.threads = self.threads;
    info.queries_in_flight = self.queries_in_flight;
    info.plan = @intFromEnum(self.shared.plan);
    info.stores_vectors = @intFromBool(reader.vectors != null);
    info.memory_codes_bytes = reader.memory_codes_bytes();
    info.memory_links_bytes = reader.memory_links_bytes();
    info.memory_cache_bytes = if (self.cache) |*cache| cache.memory_bytes() else 0;
    info.memory_pages_bytes = reader.memory_pages_bytes();
    info.memory_workers_bytes = switch (self.engine) {
        inline else => |engine| engine.memory_bytes(),
    };
    info.memory_budget_bytes = self.memory_budget_bytes;
    info.device = self.device;
    info.page_links = @intFromBool(m.page_links);
    common.put_text(&info.uuid, m.uuid);
    common.write_versioned(IndexInfo, out, &info);
    return ok;
}

// ---- searching ----

/// Null when the options can be searched with.
pub fn refused(o: *const SearchOptions) ?i32 {
    const k = base.limits.ranges.k;
    if (!k.holds(o.k)) return fail(.invalid_argument, .{ .argument = "k" }, "k is {d}; it must lie within {d} and {d}", .{ o.k, k.min, k.max });
    inline for (.{ "list_size", "beam_width", "burst_max", "staleness" }) |name| {
        if (common.outside(name, @field(o, name))) |status| return status;
    }
    if (!(o.recall >= 0 and o.recall <= 1)) return fail(.invalid_argument, .{ .argument = "recall" }, "recall is {d}; it must lie between 0 and 1", .{o.recall});
    if (o.recall == 1 and o.exact < 0) return fail(.invalid_argument, .{ .argument = "exact" }, "a recall of 1 is exact; leave exact out, or ask for less", .{});
    if (o.exact < -1 or o.exact > 1) return fail(.invalid_argument, .{ .argument = "exact" }, "exact is {d}; it must be -1, 0 or 1", .{o.exact});
    // Below zero it is left to the search.
    if (std.math.isNan(o.sigma) or o.sigma > base.limits.ranges.sigma.max)
        return fail(.invalid_argument, .{ .argument = "sigma" }, "sigma is {d}; it must lie within {d} and {d}", .{ o.sigma, base.limits.ranges.sigma.min, base.limits.ranges.sigma.max });
    if (std.enums.fromInt(search.parameters.FilterPlan, o.filter_plan) == null) return fail(.invalid_argument, .{ .argument = "filter_plan" }, "filter_plan {d} is unknown", .{o.filter_plan});
    return null;
}

pub fn resolved(o: *const SearchOptions, calibration: search.Calibration) search.Parameters {
    return search.parameters.resolve(.{
        .k = o.k,
        .list_size = o.list_size,
        .recall = o.recall,
        .sigma = o.sigma,
        .burst_max = o.burst_max,
        .beam_width = o.beam_width,
        .filter_plan = @enumFromInt(o.filter_plan),
        .flags = o.flags,
        .strict_order = o.strict_order != 0,
        .prefetch = o.prefetch_off == 0,
        .staleness = o.staleness,
        .exact = if (o.exact == 0) null else o.exact > 0,
    }, calibration);
}

/// The status for a filter that was made for another index.
pub fn foreign(self: *const Index, filter: *const filter_room.Filter, place: i64) ?i32 {
    const n = self.reader.n();
    if (filter.row_count == n) return null;
    return fail(.filter, .{ .argument = "filters", .row = place }, "the filter is over {d} rows, the index has {d}", .{ filter.row_count, n });
}

/// Checks a call's arguments and fills `job`; `queries_copy` is where a submitted job keeps its queries.
fn prepare(
    self: *Index,
    job: *search.Job,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filters: ?[*]const ?*filter_room.Filter,
    filter_count: u64,
    options: ?*const SearchOptions,
    out: *const search.Out,
) i32 {
    const reader = &self.reader;
    const given = options orelse return common.null_argument("options");
    const o = common.versioned(SearchOptions, given) orelse return common.size_error("options", given.struct_size);
    const element = std.enums.fromInt(index.Dtype, dtype) orelse return fail(.invalid_argument, .{ .argument = "dtype" }, "dtype {d} is unknown", .{dtype});
    if (refused(&o)) |status| return status;
    if (o.recall == 1 and o.list_size == 0 and reader.vectors == null)
        return fail(.unsupported, .{ .argument = "recall" }, "a recall of 1 needs the vectors, which this index does not store; build it with store_vectors=True", .{});
    if (o.exact > 0 and reader.vectors == null)
        return fail(.unsupported, .{ .argument = "exact" }, "exact distances need the vectors, which this index does not store; build it with store_vectors=True", .{});
    if (filter_count > 0 and o.excluded_vertices != null)
        return fail(.invalid_argument, .{ .argument = "excluded_vertices" }, "excluded_vertices are for searches without a filter", .{});
    if (filter_count > 1 and filter_count != query_count)
        return fail(.invalid_argument, .{ .argument = "filters" }, "{d} filters for {d} queries: give none, one, or one a query", .{ filter_count, query_count });
    const query_bytes = reader.header.dim_in * element.bytes();
    const total = std.math.mul(u64, query_count, query_bytes) catch return fail(.invalid_argument, .{ .argument = "queries" }, "{d} queries are too many", .{query_count});
    const bytes = @as([*]const u8, @ptrCast(queries orelse return common.null_argument("queries")))[0..@intCast(total)];
    if (first_not_finite(element, bytes)) |place| {
        const row = place / reader.header.dim_in;
        return fail(.not_finite, .{ .argument = "queries", .row = @intCast(row) }, "query {d} holds NaN, infinity or a magnitude above {d}", .{ row, index.space.magnitude_max });
    }
    const handles: []const ?*filter_room.Filter = if (filter_count == 0) &.{} else (filters orelse return common.null_argument("filters"))[0..@intCast(filter_count)];
    for (handles, 0..) |handle, i| {
        const filter = handle orelse continue;
        if (foreign(self, filter, @intCast(i))) |status| return status;
    }
    job.* = .{
        .queries = bytes,
        .query_bytes = query_bytes,
        .dtype = element,
        .count = query_count,
        .filters = @ptrCast(handles),
        .parameters = resolved(&o, self.calibration()),
        .excluded = o.excluded_vertices,
        .deadline_us = if (o.timeout_us == 0) 0 else base.nowMicros() +| o.timeout_us,
        .out = out,
        .on_done = undefined,
    };
    search.prepare_filters(job, &self.shared) catch return common.out_of_memory();
    return ok;
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

const Blocking = struct {
    job: search.Job,
    done: std.Thread.ResetEvent = .{},

    fn on_done(job: *search.Job) void {
        const self: *Blocking = @fieldParentPtr("job", job);
        self.done.set();
    }
};

/// The status of an ended job, with its message.
fn outcome_status(job: *const search.Job) i32 {
    const page = job.failure_page.load(.acquire);
    const file = switch (job.file_at_fault()) {
        .pages => index.reader.file_pages,
        .vectors => index.reader.file_vectors,
    };
    return switch (job.outcome()) {
        .ok => ok,
        .corrupt => if (page >= 0)
            fail(.corrupt, .{ .file = file, .page = page }, "page {d} of {s} is damaged", .{ page, file })
        else
            fail(.corrupt, .{ .file = index.reader.file_links }, "{s} is damaged", .{index.reader.file_links}),
        .io => fail(.io, .{ .file = file, .page = page }, "the device failed to read page {d} of {s}", .{ page, file }),
        .timeout => fail(.timeout, .{}, "the search ran into its timeout", .{}),
        .closed => closed(),
        .canceled => fail(.cancelled, .{}, "the search was cancelled", .{}),
    };
}

export fn velo_search(
    handle: ?*Index,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filters: ?[*]const ?*filter_room.Filter,
    filter_count: u64,
    options: ?*const SearchOptions,
    out: ?*search.Out,
) i32 {
    const self = handle orelse return common.null_argument("index");
    const given_out = out orelse return common.null_argument("out");
    if (self.enter()) |status| return status;
    defer self.leave();
    if (query_count == 0) return ok;
    const own_out = common.versioned(search.Out, given_out) orelse return common.size_error("out", given_out.struct_size);
    var blocking: Blocking = .{ .job = undefined };
    const status = prepare(self, &blocking.job, queries, dtype, query_count, filters, filter_count, options, &own_out);
    if (status != ok) return status;
    blocking.job.on_done = Blocking.on_done;
    if (!self.submit(&blocking.job)) return closed();
    blocking.done.wait();
    translate_statuses(&own_out, query_count);
    return outcome_status(&blocking.job);
}

/// Workers write outcomes; callers read statuses.
fn translate_statuses(out: *const search.Out, query_count: u64) void {
    const statuses = out.statuses orelse return;
    for (statuses[0..@intCast(query_count)]) |*status| {
        status.* = @intFromEnum(@as(common.Status, switch (@as(search.Outcome, @enumFromInt(status.*))) {
            .ok => .ok,
            .corrupt => .corrupt,
            .io => .io,
            .timeout => .timeout,
            .closed => .closed,
            .canceled => .cancelled,
        }));
    }
}

const Ticket = struct {
    job: search.Job,
    node: tickets.Node = .{},
    index: *Index,
    out: search.Out,
    queries: []u8,
    filters: []?*filter_room.Filter,

    fn on_done(job: *search.Job) void {
        const self: *Ticket = @fieldParentPtr("job", job);
        translate_statuses(&self.out, job.count);
        // After this the ticket belongs to whoever reaps it.
        self.index.completed.push(&self.node);
    }

    fn deinit(self: *Ticket) void {
        common.allocator.free(self.queries);
        common.allocator.free(self.filters);
        common.allocator.destroy(self);
    }
};

export fn velo_submit(
    handle: ?*Index,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filters: ?[*]const ?*filter_room.Filter,
    filter_count: u64,
    options: ?*const SearchOptions,
    out: ?*search.Out,
    ticket_number: u64,
) i32 {
    const self = handle orelse return common.null_argument("index");
    const given_out = out orelse return common.null_argument("out");
    if (self.enter()) |status| return status;
    defer self.leave();
    if (query_count == 0) return fail(.invalid_argument, .{ .argument = "queries" }, "a ticket needs at least one query", .{});
    const own_out = common.versioned(search.Out, given_out) orelse return common.size_error("out", given_out.struct_size);
    const ticket = common.allocator.create(Ticket) catch return common.out_of_memory();
    ticket.* = .{ .job = undefined, .index = self, .out = own_out, .queries = &.{}, .filters = &.{} };
    const status = prepare(self, &ticket.job, queries, dtype, query_count, filters, filter_count, options, &ticket.out);
    if (status != ok) {
        ticket.deinit();
        return status;
    }
    ticket.queries = common.allocator.dupe(u8, ticket.job.queries) catch {
        ticket.deinit();
        return common.out_of_memory();
    };
    ticket.filters = common.allocator.dupe(?*filter_room.Filter, @ptrCast(@constCast(ticket.job.filters))) catch {
        ticket.deinit();
        return common.out_of_memory();
    };
    ticket.job.queries = ticket.queries;
    ticket.job.filters = @ptrCast(ticket.filters);
    ticket.job.on_done = Ticket.on_done;
    ticket.node.number = ticket_number;
    ticket.node.canceled = &ticket.job.canceled;
    if (!self.completed.reserve(&ticket.node)) {
        ticket.deinit();
        return fail(.busy, .{}, "{d} searches wait already", .{tickets.waiting_max});
    }
    if (!self.submit(&ticket.job)) {
        self.completed.forget(&ticket.node);
        ticket.deinit();
        return closed();
    }
    return ok;
}

pub const Completion = extern struct { ticket: u64, status: i32, reserved: u32 = 0 };

export fn velo_reap(handle: ?*Index, completions_out: ?[*]Completion, capacity: u32, count_out: ?*u32) i32 {
    const self = handle orelse return common.null_argument("index");
    const out = completions_out orelse return common.null_argument("completions_out");
    const count = count_out orelse return common.null_argument("count_out");
    if (self.process != common.process()) return common.forked();
    count.* = 0;
    while (count.* < capacity) {
        const node = self.completed.pop() orelse break;
        const ticket: *Ticket = @fieldParentPtr("node", node);
        out[count.*] = .{ .ticket = node.number, .status = outcome_status(&ticket.job) };
        count.* += 1;
        ticket.deinit();
    }
    return ok;
}

export fn velo_cancel(handle: ?*Index, ticket: u64) i32 {
    const self = handle orelse return common.null_argument("index");
    if (self.enter()) |status| return status;
    defer self.leave();
    self.completed.cancel(ticket);
    return ok;
}

export fn velo_event_fd(handle: ?*Index, fd_out: ?*i32) i32 {
    const self = handle orelse return common.null_argument("index");
    const out = fd_out orelse return common.null_argument("fd_out");
    if (self.process != common.process()) return common.forked();
    out.* = self.completed.event_fd;
    return ok;
}

export fn velo_get_vectors(handle: ?*Index, vertices: ?[*]const u32, count: u64, vectors_out: ?[*]f32) i32 {
    const self = handle orelse return common.null_argument("index");
    if (self.enter()) |status| return status;
    defer self.leave();
    if (count == 0) return ok;
    const ids = vertices orelse return common.null_argument("vertices");
    const out = vectors_out orelse return common.null_argument("vectors_out");
    var diagnostic: index.Diagnostic = .{};
    self.reader.get_vectors(ids[0..@intCast(count)], out[0..@intCast(count * self.reader.header.dim_in)], &diagnostic) catch |err|
        return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_index_recommit(
    path: ?[*:0]const u8,
    prefix: ?[*:0]const u8,
    file_names: ?[*]const ?[*:0]const u8,
    file_count: u32,
    user_json: ?[*:0]const u8,
) i32 {
    const folder = path orelse return common.null_argument("path");
    const beginning = prefix orelse return common.null_argument("prefix");
    const user = user_json orelse return common.null_argument("user_json");
    const names = common.allocator.alloc([]const u8, file_count) catch return common.out_of_memory();
    defer common.allocator.free(names);
    for (names, 0..) |*name, i| name.* = std.mem.span((file_names orelse return common.null_argument("file_names"))[i] orelse return common.null_argument("file_names"));
    var diagnostic: index.Diagnostic = .{};
    index.recommit(common.allocator, std.mem.span(folder), std.mem.span(beginning), names, std.mem.span(user), &diagnostic) catch |err|
        return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_verify(path: ?[*:0]const u8, pages_checked_out: ?*u64) i32 {
    const folder = path orelse return common.null_argument("path");
    var diagnostic: index.Diagnostic = .{};
    var pages: u64 = 0;
    live.verify(common.allocator, std.mem.span(folder), &pages, &diagnostic) catch |err| return live.fail_live(err, &diagnostic);
    if (pages_checked_out) |out| out.* = pages;
    return ok;
}
