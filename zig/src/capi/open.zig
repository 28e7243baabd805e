//! velo_index_open of velo.h: the options, checked, and what is opened one after the other.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const search = @import("search");
const common = @import("common.zig");
const engines = @import("engines.zig");
const handle = @import("handle.zig");
const handles = @import("handles.zig");
const Handle = handles.Handle;
const Index = handle.Index;
const report = common.report;

/// As velo_open_options.
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
    workers_of: Handle,
    cache_bytes: u64,
    gpu: i32,
    gpu_queries: u32,
};

/// Of the options those that are numbers of something, by name.
const Names = struct { io: common.Io, plan: common.Plan };

export fn velo_index_open(path: ?[*:0]const u8, options: ?*const OpenOptions, index_out: ?*Handle) i32 {
    return common.status_of_call(create(path, options, index_out));
}

fn create(path: ?[*:0]const u8, options: ?*const OpenOptions, index_out: ?*Handle) common.Failure!void {
    const folder = try common.need("path", path);
    const out = try common.need("index_out", index_out);
    const o = try common.read(OpenOptions, "options", options);
    const names = try check(&o);
    const other = if (o.workers_of == 0) null else try handles.enter(Index, "workers_of", o.workers_of);
    defer if (other != null) handles.leave(o.workers_of);
    const self = try common.allocator.create(Index);
    errdefer common.allocator.destroy(self);
    try open(self, std.mem.span(folder), &o, names, other);
    errdefer self.deinit();
    out.* = try handles.open(Index, self);
}

fn check(o: *const OpenOptions) error{Reported}!Names {
    const names: Names = .{
        .plan = try common.value_of(common.Plan, common.Plan, "plan", o.plan),
        .io = try common.value_of(common.Io, common.Io, "io", o.io),
    };
    try common.within(o, .{ "threads", "queries_in_flight", "queue_depth" });
    const share = base.limits.ranges.cache_share_percent;
    // A whole percent divided by 100 is the literal's double, so that 0.95 itself is within.
    if (std.math.isNan(o.cache_share) or o.cache_share > @as(f64, share.max) / 100)
        return report(.invalid_argument, .{ .argument = "cache_share" }, "cache_share is {d}; it must lie within {d} and {d} percent", .{ o.cache_share, share.min, share.max });
    return names;
}

fn open_reader(path: [:0]const u8, o: *const OpenOptions, plan: common.Plan, cache_budget: search.CacheBudget, threads: u32, other: ?*const Index) common.Failure!index.Reader {
    var diagnostic: index.Diagnostic = .{};
    // Workers that hold no pages have no room for a search of links on disk.
    const without_pages = if (other) |one| !one.workers.engine.holds_pages() else false;
    const kept = if (o.links_kept == 0 or o.links_kept == std.math.maxInt(u32)) null else o.links_kept;
    var options: index.reader.Options = .{
        .links_kept = kept,
        .page_codes_kept = if (plan == .walk) kept else null,
        .memory_bytes = o.memory_bytes - cache_budget.reserved_bytes(),
        .links = switch (plan) {
            .auto, .walk => if (without_pages) .in_memory else .where_room,
            .links_in_memory => .in_memory,
            .links_on_disk => .on_disk,
        },
        .page_codes = switch (plan) {
            .auto => .where_short,
            .links_in_memory, .links_on_disk => .never,
            .walk => .always,
        },
        .threads = threads,
    };
    return index.Reader.open(common.allocator, path, options, &diagnostic) catch |err| {
        if (err != error.BudgetTooSmall or !without_pages) return common.report_index(err, &diagnostic);
        // Beside a segment that has its links in memory one of fewer rows needs little more than its share, and gets that.
        options.memory_bytes = diagnostic.needed_bytes;
        return index.Reader.open(common.allocator, path, options, &diagnostic) catch |another| common.report_index(another, &diagnostic);
    };
}

/// Each segment is closed again where one behind it cannot be opened.
fn open(self: *Index, path: [:0]const u8, o: *const OpenOptions, names: Names, other: ?*Index) common.Failure!void {
    const threads = common.thread_count(o.threads);
    const cache_budget: search.CacheBudget = .{ .memory_bytes = o.memory_bytes, .share = o.cache_share, .pages_bytes = o.cache_bytes };
    self.reader = try open_reader(path, o, names.plan, cache_budget, threads, other);
    errdefer self.reader.deinit();
    const found: search.Plan = if (self.reader.page_codes_kept() > 0) .walk else if (self.reader.has_links()) .links_in_memory else .links_on_disk;
    self.shared = try search.Shared.init(common.allocator, &self.reader, found);
    errdefer self.shared.deinit(common.allocator);
    // Codes in blocks serve searches beside a larger segment.
    if (other != null) try self.shared.open_blocks(cache_budget);
    self.completed = .{};
    errdefer self.completed.deinit();
    self.cache = try search.open_cache(common.allocator, &self.shared, cache_budget);
    errdefer if (self.cache) |*cache| cache.deinit();
    if (self.cache) |*cache| self.shared.cache = cache;
    // Without it every search reads its pages, as info says.
    self.cache_refused = false;
    self.page_caches = search.PageCaches.open(common.allocator, &self.shared, cache_budget) catch refused: {
        self.cache_refused = true;
        break :refused .{};
    };
    errdefer self.page_caches.deinit();
    self.shared.page_caches = &self.page_caches;
    const direct = o.buffered == 0;
    self.files = try .open(path, self.reader.vectors != null, direct);
    errdefer self.files.close();
    self.reader.close_files(self.files.pages.fd, self.files.vectors);
    self.memory_budget_bytes = o.memory_bytes;
    self.gpu = try .attach(o.gpu, o.gpu_queries, &self.shared, threads);
    errdefer self.gpu.detach();
    try find_workers(self, o, names.io, direct, threads, other);
    self.loader = .{ .reader = &self.reader, .caches = &self.page_caches, .files = .{ self.files.pages.fd, self.files.vectors orelse -1 } };
    // Simulated reads are the engine's alone, so that a seed repeats.
    if (std.meta.activeTag(self.workers.engine) != .simulated) self.loader.start();
}

/// Those of another index where they are asked for and have the room that this one needs, else those of any index opened alike.
fn find_workers(self: *Index, o: *const OpenOptions, asked: common.Io, direct: bool, threads: u32, other: ?*Index) common.Failure!void {
    if (other) |one| {
        self.workers = one.workers.share();
        self.device = one.device;
    } else {
        const found = try engines.find(&self.shared, asked, direct, self.files.pages, .{
            .threads = threads,
            .queries_in_flight = if (o.queries_in_flight == 0) search.engine.queries_in_flight_default else o.queries_in_flight,
            .adaptive = o.queries_in_flight == 0,
            .queue_depth = if (o.queue_depth == 0) search.engine.queue_depth_default else o.queue_depth,
            .simulated_seed = o.simulated_seed,
            .simulated_faults = o.simulated_faults,
        });
        self.workers = found.workers;
        self.device = found.device;
    }
    errdefer self.workers.release();
    self.segment = self.workers.engine.attach(&self.shared, .{ self.files.pages.fd, self.files.vectors }) catch |err| switch (err) {
        error.OutOfMemory => return error.OutOfMemory,
        error.TooLarge => return report(.unsupported, .{ .argument = "workers_of" }, "its pages are larger than those that the workers of the other index read", .{}),
    };
}
