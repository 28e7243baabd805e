//! velo_index of velo.h while it is open: its parts, and submitted searches that have ended.
const std = @import("std");
const base = @import("base");
const io = @import("io");
const index = @import("index");
const search = @import("search");
const filter_room = @import("filter");
const common = @import("common.zig");
const engines = @import("engines.zig");
const gpu_file = @import("gpu.zig");
const handles = @import("handles.zig");
const Handle = handles.Handle;
const ok = common.ok;

// ---- tickets ----
//
// Asynchronous searches that have ended and wait to be reaped.

/// Submitted and not reaped, at most.
pub const waiting_max = 1 << 16;

pub const Node = struct {
    number: u64 = 0,
    /// The job's own flag, good for as long as the node is outstanding.
    canceled: ?*std.atomic.Value(bool) = null,
    /// Among those completed.
    following: ?*Node = null,
    /// Among those outstanding.
    newer: ?*Node = null,
    older: ?*Node = null,
};

pub const Completed = struct {
    mutex: std.Thread.Mutex = .{},
    first: ?*Node = null,
    last: ?*Node = null,
    /// Submitted and not reaped.
    newest: ?*Node = null,
    outstanding: u32 = 0,
    /// Readable while something can be reaped. Made when it is first asked for.
    event_fd: ?std.posix.fd_t = null,

    /// Nodes still inside are leaked on purpose: their owner has stopped asking for them while closing.
    pub fn deinit(self: *Completed) void {
        if (self.event_fd) |fd| std.posix.close(fd);
    }

    /// A descriptor of the caller's own.
    pub fn event(self: *Completed) !std.posix.fd_t {
        self.mutex.lock();
        defer self.mutex.unlock();
        const flags = std.os.linux.EFD.CLOEXEC | std.os.linux.EFD.NONBLOCK;
        if (self.event_fd == null) self.event_fd = try std.posix.eventfd(@intFromBool(self.first != null), flags);
        const dup_cloexec = 1030; // F_DUPFD_CLOEXEC
        return @intCast(try std.posix.fcntl(self.event_fd.?, dup_cloexec, 0));
    }

    /// Before a node's job is submitted. False when too many are outstanding.
    pub fn reserve(self: *Completed, node: *Node) bool {
        self.mutex.lock();
        defer self.mutex.unlock();
        if (self.outstanding == waiting_max) return false;
        self.outstanding += 1;
        node.newer = null;
        node.older = self.newest;
        if (self.newest) |newest| newest.newer = node;
        self.newest = node;
        return true;
    }

    /// A reserved node that will never be pushed.
    pub fn forget(self: *Completed, node: *Node) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        self.unlink(node);
    }

    /// Tells the job of that number to end. One that has ended, or never was, is left alone.
    pub fn cancel(self: *Completed, number: u64) void {
        self.mutex.lock(); // nodes stay while it is held
        defer self.mutex.unlock();
        var next = self.newest;
        while (next) |node| : (next = node.older) {
            if (node.number == number) return node.canceled.?.store(true, .monotonic);
        }
    }

    fn unlink(self: *Completed, node: *Node) void {
        if (node.newer) |newer| newer.older = node.older else self.newest = node.older;
        if (node.older) |older| older.newer = node.newer;
        self.outstanding -= 1;
    }

    pub fn push(self: *Completed, node: *Node) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        node.following = null;
        const last = self.last;
        self.last = node;
        if (last) |before| {
            before.following = node; // readable already: `pop` reads the descriptor when nothing is left
            return;
        }
        self.first = node;
        // Under the lock, so that the descriptor is not closed between the two.
        const one: u64 = 1;
        if (self.event_fd) |fd| _ = std.posix.write(fd, std.mem.asBytes(&one)) catch {}; // full means readable, which is all it has to be
    }

    pub fn pop(self: *Completed) ?*Node {
        self.mutex.lock();
        defer self.mutex.unlock();
        const node = self.first orelse {
            var count: u64 = 0;
            if (self.event_fd) |fd| _ = std.posix.read(fd, std.mem.asBytes(&count)) catch {}; // nothing to read is nothing to clear
            return null;
        };
        self.first = node.following;
        if (self.first == null) self.last = null;
        self.unlink(node);
        return node;
    }
};

// ---- handles ----

pub const Index = struct {
    pub const handle_kind: handles.Kind = .index;

    reader: index.Reader,
    shared: search.Shared,
    workers: *engines.Workers,
    device: engines.DeviceInfo,
    /// Its segment among those of the workers.
    segment: *search.Segment,
    gpu: gpu_file.Attached,
    cache: ?search.Cache,
    page_caches: search.PageCaches,
    /// The system refused its memory.
    cache_refused: bool,
    /// Fills them.
    loader: search.PageLoader,
    files: Files,
    memory_budget_bytes: u64,
    completed: Completed,

    /// No call is inside.
    pub fn deinit(self: *Index) void {
        self.loader.stop();
        // Ends submitted searches; then no worker touches what goes away below.
        self.workers.engine.detach(self.segment);
        self.gpu.detach();
        self.workers.release();
        self.files.close();
        if (self.cache) |*cache| cache.deinit();
        self.page_caches.deinit();
        self.completed.deinit();
        self.shared.deinit(common.allocator);
        self.reader.deinit();
    }

    pub fn submit(self: *Index, job: *search.Job) error{Reported}!void {
        if (self.gpu.submit(job, &self.workers.engine)) return;
        if (!self.workers.engine.submit(job)) return handles.report_closed();
    }

    /// The build's measurements for the plan in use.
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
const Files = struct {
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

export fn velo_index_close(place: ?*Handle) i32 {
    const self = (handles.close(Index, (place orelse return ok).*) catch return handles.busy()) orelse return ok;
    self.deinit();
    common.allocator.destroy(self);
    base.give_back();
    return ok;
}

test "tickets are found until they are reaped, and then no more" {
    const testing = std.testing;
    var completed: Completed = .{};
    defer completed.deinit();
    var flags: [5]std.atomic.Value(bool) = @splat(.init(false));
    var nodes: [5]Node = undefined;
    for (&nodes, &flags, 0..) |*node, *flag, i| {
        node.* = .{ .number = i + 10, .canceled = flag };
        try testing.expect(completed.reserve(node));
    }
    completed.cancel(12);
    completed.cancel(99);
    completed.forget(&nodes[4]);
    completed.push(&nodes[0]);
    try testing.expectEqual(&nodes[0], completed.pop().?);
    completed.cancel(10); // reaped: left alone
    completed.cancel(14); // never submitted
    for (&flags, 0..) |*flag, i| try testing.expectEqual(i == 2, flag.load(.monotonic));
    try testing.expectEqual(3, completed.outstanding);
    for (nodes[1..4]) |*node| completed.push(node);
    for (nodes[1..4]) |*node| try testing.expectEqual(node, completed.pop().?);
    try testing.expectEqual(null, completed.pop());
    try testing.expectEqual(0, completed.outstanding);
    try testing.expectEqual(null, completed.newest);
}
