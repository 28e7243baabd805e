//! velo_index of velo.h as it stands while it is open: what it is made of, and calls that come and go.
const std = @import("std");
const base = @import("base");
const io = @import("io");
const index = @import("index");
const search = @import("search");
const filter_room = @import("filter");
const common = @import("common.zig");
const engines = @import("engines.zig");
const tickets = @import("tickets.zig");
const ok = common.ok;

pub const Index = struct {
    process: i32,
    reader: index.Reader,
    shared: search.Shared,
    workers: *engines.Workers,
    /// What the workers know of it.
    part: *search.Part,
    cache: ?search.Cache,
    page_caches: search.PageCaches,
    /// The system refused its memory.
    cache_refused: bool,
    /// Fills them.
    loader: search.PageLoader,
    files: Files,
    memory_budget_bytes: u64,
    /// Calls under way; closing waits for them.
    calls: std.atomic.Value(u32),
    closing: std.atomic.Value(bool),
    completed: tickets.Completed,

    /// A call begins, unless the process was forked or the index is being closed; `leave` ends it.
    pub fn enter(self: *Index) error{Reported}!void {
        if (self.process != common.process()) {
            _ = common.forked();
            return error.Reported;
        }
        _ = self.calls.fetchAdd(1, .acquire);
        if (self.closing.load(.acquire)) {
            self.leave();
            return report_closed();
        }
    }

    pub fn leave(self: *Index) void {
        _ = self.calls.fetchSub(1, .release);
    }

    pub fn submit(self: *Index, job: *search.Job) error{Reported}!void {
        if (!self.workers.engine.submit(job)) return report_closed();
    }

    /// What the build measured for the plan in use.
    pub fn calibration(self: *const Index) search.Calibration {
        return .of(self.reader.manifest(), self.shared.plan, @max(self.reader.links_kept, self.reader.page_codes_kept()));
    }

    /// A filter that was made for another index is refused; `place` says which of several it is.
    pub fn check_filter(self: *const Index, filter: *const filter_room.Filter, place: i64) error{Reported}!void {
        const n = self.reader.n();
        if (filter.row_count == n) return;
        return common.report(.filter, .{ .argument = "filters", .row = place }, "the filter is over {d} rows, the index has {d}", .{ filter.row_count, n });
    }
};

/// The files that searches read pages of.
pub const Files = struct {
    pages: io.Pages,
    vectors: ?std.posix.fd_t,

    pub fn open(path: [:0]const u8, with_vectors: bool, direct: bool) common.Failure!Files {
        const pages = try open_file(path, index.reader.file_pages, direct);
        errdefer std.posix.close(pages.fd);
        const vectors = if (with_vectors) (try open_file(path, index.reader.file_vectors, direct)).fd else null;
        return .{ .pages = pages, .vectors = vectors };
    }

    pub fn close(self: *Files) void {
        std.posix.close(self.pages.fd);
        if (self.vectors) |fd| std.posix.close(fd);
    }

    fn open_file(folder: [:0]const u8, name: []const u8, direct: bool) common.Failure!io.Pages {
        const path = try std.fmt.allocPrintSentinel(common.allocator, "{s}/{s}", .{ folder, name }, 0);
        defer common.allocator.free(path);
        return io.open_pages(path, direct) catch |err|
            common.report(.io, .{ .file = name }, "cannot open {s}: {s}", .{ name, index.diagnostic.reason(err) });
    }
};

pub fn closed() i32 {
    return common.fail(.closed, .{}, "the index was closed", .{});
}

fn report_closed() error{Reported} {
    _ = closed();
    return error.Reported;
}

export fn velo_index_close(place: ?*?*Index) i32 {
    const self = common.take(Index, place) orelse return ok;
    // In a child the workers do not exist; the parent's descriptors and memory end with the child.
    if (self.process != common.process()) return ok;
    self.closing.store(true, .release);
    self.loader.stop();
    // Ends what is under way; then no worker touches what goes away below.
    self.workers.engine.detach(self.part);
    while (self.calls.load(.acquire) > 0) std.Thread.sleep(50 * std.time.ns_per_us);
    self.workers.release();
    self.files.close();
    if (self.cache) |*cache| cache.deinit();
    self.page_caches.deinit();
    self.completed.deinit();
    self.shared.deinit(common.allocator);
    self.reader.deinit();
    common.allocator.destroy(self);
    base.give_back();
    return ok;
}
