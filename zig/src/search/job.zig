//! A call of search as the workers see it, the segments that it searches, and the queue between callers and workers.
const std = @import("std");
const base = @import("base");
const io = @import("io");
const filter_room = @import("filter");
const index = @import("index");
const Shared = @import("shared.zig").Shared;
const filter_plan = @import("filter_plan.zig");
const query_file = @import("query.zig");
const File = @import("shared.zig").File;
const parameters_file = @import("parameters.zig");
const Parameters = parameters_file.Parameters;
const RecentPages = @import("pages.zig").RecentPages;
const Costs = @import("cost.zig").Costs;
const lists = @import("list.zig");
const Candidate = lists.Candidate;
const Search = query_file.Search;
const Request = query_file.Request;

// ---- segments ----
//
// A segment is an open index as workers see it: data that its queries share, its files, and a subsearch for every slot of every
// worker. A query over several segments has a subsearch in each of them.

/// The search of one segment by one query.
pub const SegmentSearch = struct {
    search: Search,
    /// Pages that it waits for, including those that another query requested first.
    in_flight: u32 = 0,
    /// Something arrived since its last step, or it had none yet.
    due: bool = false,
    /// It wants nothing more; pages that may hold an answer can still be on their way.
    ended: bool = false,

    /// Of its pages all have to be there before it goes on, so that its answer does not depend on which came first.
    pub fn waits_for_all(self: *const SegmentSearch) bool {
        return self.search.shared.plan == .links_in_memory or switch (self.search.state) {
            .coded, .rescore, .every => true,
            else => false,
        };
    }
};

pub const Segment = struct {
    shared: *const Shared,
    /// pages.bin and vectors.bin by descriptor; null: the files that the devices of the workers were opened for.
    files: [io.file_count]?std.posix.fd_t,
    /// Tells its pages from those of other segments of the same workers.
    number: u31,
    /// One for each slot of the first worker, then of the second, and so on; then for callers that answer their own
    /// queries. Each is set up by its first query: most indexes of a process are searched by one or two queries at a time.
    searches: []SegmentSearch,
    is_set_up: []bool,
    /// Memory of the searches, as much for each. A mapping of its own: to touch it cannot fail, and no other use of the heap
    /// keeps it resident.
    memory: base.AlignedBytes,
    memory_each: usize,
    /// It is taken away: its queries end.
    closing: std.atomic.Value(bool) = .init(false),
    /// Calls under way.
    users: std.atomic.Value(u32) = .init(0),

    /// Memory that a search keeps from one query to the next, in bytes.
    const touched_max = 128 << 10;

    pub fn init(shared: *const Shared, files: [io.file_count]?std.posix.fd_t, number: u31, count: usize) error{OutOfMemory}!Segment {
        const each = try memory_of_search(shared);
        var memory: base.AlignedBytes = try .alloc(count * (each + @sizeOf(SegmentSearch) + 1), .{});
        const searches_at = count * each;
        const flags_at = searches_at + count * @sizeOf(SegmentSearch);
        return .{
            .shared = shared,
            .files = files,
            .number = number,
            .searches = @alignCast(std.mem.bytesAsSlice(SegmentSearch, memory.bytes[searches_at..flags_at])),
            .is_set_up = @ptrCast(memory.bytes[flags_at..]),
            .memory = memory,
            .memory_each = each,
        };
    }

    /// No call is under way.
    pub fn deinit(self: *Segment) void {
        std.debug.assert(self.users.load(.acquire) == 0);
        self.memory.free();
    }

    /// Sets up the search at that place, before a query begins in it.
    pub fn prepare(self: *Segment, place: usize) void {
        if (!self.is_set_up[place]) {
            var own: std.heap.FixedBufferAllocator = .init(self.memory.bytes[place * self.memory_each ..][0..self.memory_each]);
            self.searches[place] = .{ .search = Search.init(own.allocator(), self.shared) catch unreachable };
            self.is_set_up[place] = true;
        }
    }

    /// Returns the memory of a search to the system if its last query used much. The next query sets the search up again.
    pub fn give_back(self: *Segment, place: usize) void {
        if (self.searches[place].search.touched_bytes() < touched_max) return;
        const own = self.memory.bytes[place * self.memory_each ..][0..self.memory_each];
        std.posix.madvise(@alignCast(own.ptr), own.len, std.os.linux.MADV.DONTNEED) catch return;
        self.is_set_up[place] = false;
    }

    fn memory_of_search(shared: *const Shared) error{OutOfMemory}!usize {
        var arena: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
        defer arena.deinit();
        var counter: Counter = .{ .child = arena.allocator() };
        _ = try Search.init(.{ .ptr = &counter, .vtable = &Counter.vtable }, shared);
        // Each begins on a page, so that alignment takes as much of every one.
        return std.mem.alignForward(usize, counter.bytes, base.memory.page_size);
    }

    pub fn memory_bytes(self: *const Segment) u64 {
        return self.searches.len * @sizeOf(SegmentSearch);
    }

    /// A call begins, unless the segment is being taken away; `leave` ends it.
    pub fn enter(self: *Segment) bool {
        _ = self.users.fetchAdd(1, .seq_cst);
        if (!self.closing.load(.seq_cst)) return true;
        self.leave();
        return false;
    }

    pub fn leave(self: *Segment) void {
        _ = self.users.fetchSub(1, .seq_cst);
    }

    /// Ends its calls and waits for that.
    pub fn close(self: *Segment) void {
        self.closing.store(true, .seq_cst);
        while (self.users.load(.seq_cst) > 0) std.Thread.sleep(50 * std.time.ns_per_us);
    }
};

/// Counts the bytes that allocations take one behind another.
const Counter = struct {
    child: std.mem.Allocator,
    bytes: usize = 0,

    const vtable: std.mem.Allocator.VTable = .{ .alloc = alloc, .resize = std.mem.Allocator.noResize, .remap = std.mem.Allocator.noRemap, .free = std.mem.Allocator.noFree };

    fn alloc(context: *anyopaque, len: usize, alignment: std.mem.Alignment, address: usize) ?[*]u8 {
        const self: *Counter = @ptrCast(@alignCast(context));
        self.bytes = alignment.forward(self.bytes) + len;
        return self.child.rawAlloc(len, alignment, address);
    }
};

// ---- jobs ----

/// The time that a worker without queries looks for another before it sleeps: a caller that is alone comes back sooner than
/// a sleeper wakes up.
const look_us = 50;

/// The end of a query; capi has a status for each.
pub const Outcome = enum(i32) { ok, corrupt, io, timeout, closed, canceled };

/// The output of a job: arrays of the caller's with an entry a query, those of neighbors with k. What is null is
/// not wanted.
pub const Answers = struct {
    /// Nearest first, padded with -1 and infinity.
    vertices: ?[*]i64 = null,
    distances: ?[*]f32 = null,
    /// The number of neighbors found.
    counts: ?[*]u32 = null,
    outcomes: ?[*]Outcome = null,
    /// The page at fault, or -1, and its file.
    error_pages: ?[*]i64 = null,
    error_files: ?[*]i32 = null,
    costs: Costs = .{},
};

/// Segments that one call may search.
pub const segments_max = base.limits.ranges.segments.max;

/// One of the segments that a job searches.
pub const JobSegment = struct {
    segment: *Segment,
    /// The number of its first vertex in the answer.
    first: i64 = 0,
    /// None, one for all, or one a query.
    filters: []const ?*const filter_room.Filter = &.{},
    parameters: Parameters,
    role: Request.Role = .none,
    /// Of the rows of all segments.
    share: f32 = 1,
    /// Links on disk: pages that a query holds at most, of those that it may hold over all segments.
    held_max: u32 = RecentPages.max,
    /// The lists that navigation has ended with, if it was done elsewhere.
    navigated: ?*const Navigated = null,

    fn filter_of(self: *const JobSegment, query: u64) ?*const filter_room.Filter {
        return switch (self.filters.len) {
            0 => null,
            1 => self.filters[0],
            else => self.filters[@intCast(query)],
        };
    }

    /// Finds all matches of those filters that will be scanned, once each, so that a worker need not and memory is asked
    /// for here.
    pub fn prepare_filters(self: *const JobSegment) error{OutOfMemory}!void {
        for (self.filters) |handle| {
            const filter = handle orelse continue;
            if (filter.matches_found() != null) continue;
            const shared = self.segment.shared;
            if (filter_plan.plan_of(shared, filter, &self.parameters) == .scan or filter_plan.lists_matches(shared, filter)) _ = try @constCast(filter).matches();
        }
    }
};

/// Candidate lists of some queries of a job, from a GPU (the room offload).
pub const Navigated = struct {
    /// The query of the first list.
    first: u64,
    list_size: u32,
    /// `list_size` of each query, ascending, then `none`; the lowest bit is set where links were followed.
    candidates: []const Candidate,
    /// One a query.
    counters: []const Counters,
    /// Counts lists that were none.
    refused: *std.atomic.Value(u64),

    /// The cost of the navigation of one query.
    pub const Counters = extern struct { len: u32, expanded: u32, estimates: u32, unused: u32 = 0 };

    pub const List = struct { candidates: []const Candidate, counters: Counters, refused: *std.atomic.Value(u64) };

    fn list_of(self: *const Navigated, query: u64) List {
        const at: usize = @intCast(query - self.first);
        const counters = self.counters[at];
        return .{ .candidates = self.candidates[at * self.list_size ..][0..@min(counters.len, self.list_size)], .counters = counters, .refused = self.refused };
    }
};

/// Navigation of a segment by the queries of a job, where it may be done elsewhere: best first over links in memory, whatever
/// passes a filter. Of a single query it may turn out otherwise; that takes no list (query.zig).
pub const Elsewhere = struct {
    list_size: u32,
    stop: lists.List.Stop,

    /// A filter that fewer pass would leave too little of a list.
    const share_least = 0.5;

    /// Null where workers have to.
    pub fn of(segment: *const JobSegment) ?Elsewhere {
        const parameters = &segment.parameters;
        const shared = segment.segment.shared;
        if (shared.plan != .links_in_memory or (parameters.every and shared.reader.vectors != null)) return null;
        if (segment.role == .smaller and query_file.Search.looks_at_all(shared)) return null;
        if (segment.filters.len > 1) return null;
        const filter = segment.filter_of(0) orelse {
            if (parameters.scan) return null;
            return .{ .list_size = parameters.list_size, .stop = query_file.stop_of(shared, parameters, parameters.list_size) };
        };
        const share = filter.estimate();
        switch (filter_plan.plan_of(shared, filter, parameters)) {
            .late => return if (share == 0) null else .{ .list_size = query_file.late_list_size(shared, filter, parameters), .stop = .never },
            .gate => {
                if (share < share_least) return null;
                // Those that pass are as many then as the list of a search among them alone.
                const wanted = parameters_file.list_size_filtered(parameters);
                var own: Elsewhere = .{ .list_size = widened(wanted, share), .stop = query_file.stop_of(shared, parameters, wanted) };
                if (own.stop.followed == lists.List.Stop.never.followed) return own;
                own.stop.k = @min(own.list_size, widened(own.stop.k, share));
                own.stop.followed = widened(own.stop.followed, share);
                return own;
            },
            .scan, .auto => return null,
        }
    }

    fn widened(count: u32, share: f64) u32 {
        return @intFromFloat(@ceil(@as(f64, @floatFromInt(count)) / share));
    }
};

/// The delta of live data, which answers beside segments: rows in memory that none of them holds yet.
pub const Delta = struct {
    context: *anyopaque,
    /// The number of its first row in the answer.
    first: i64,
    /// Writes the nearest rows of those within a distance, as users see it. Called by any worker, for a query at a time.
    nearest: *const fn (context: *anyopaque, query: u64, within: f32, hits: []Hit) Found,

    pub const Hit = extern struct { distance: f32, row: u32 };
    pub const Found = struct { count: u32, measured: u32 };
};

pub const Job = struct {
    queries: []const u8,
    query_bytes: usize,
    dtype: index.Dtype,
    /// Queries, those before `next` among them, which belong to others.
    count: u64,
    /// All of them belong to the same workers, and ask for the same k.
    segments: []const JobSegment,
    delta: ?*const Delta = null,
    /// One a query, or null; of the only segment: a vertex that is taken as absent.
    excluded: ?[*]const u32 = null,
    /// base.nowMicros after which queries give up; 0 is never.
    deadline_us: u64 = 0,
    answers: *const Answers,
    /// Called by the worker that ends the last query; the job may be gone when it returns.
    on_done: *const fn (job: *Job) void,

    /// Set to cancel the job: its queries end as `.canceled` at their next step.
    canceled: std.atomic.Value(bool) = .init(false),
    /// The job that this one answers some queries of.
    whole: ?*Job = null,

    // The queue's.
    next: u64 = 0,
    following: ?*Job = null,
    // The workers'.
    remaining: std.atomic.Value(u64) = .init(0),
    /// The first outcome that was not ok, its page, and the page's file.
    failure: std.atomic.Value(Outcome) = .init(.ok),
    failure_page: std.atomic.Value(i64) = .init(-1),
    failure_file: std.atomic.Value(u8) = .init(0),

    pub fn k(self: *const Job) u32 {
        return self.segments[0].parameters.k;
    }

    pub fn request_of(self: *const Job, segment: *const JobSegment, query: u64) Request {
        const at: usize = @intCast(query);
        return .{
            .vector = self.queries[at * self.query_bytes ..][0..self.query_bytes],
            .dtype = self.dtype,
            .parameters = segment.parameters,
            .filter = segment.filter_of(query),
            .role = segment.role,
            .share = segment.share,
            .held_max = segment.held_max,
            .excluded = if (self.excluded) |excluded| excluded[at] else Request.excluded_none,
            .navigated = if (segment.navigated) |navigated| navigated.list_of(query) else null,
        };
    }

    pub fn is_canceled(self: *const Job) bool {
        return self.canceled.load(.monotonic) or if (self.whole) |whole| whole.is_canceled() else false;
    }

    /// The job answers queries of another one, which takes over its failure.
    pub fn report_to_whole(self: *const Job) void {
        const whole = self.whole.?;
        const own = self.outcome();
        if (own == .ok or whole.failure.cmpxchgStrong(.ok, own, .acq_rel, .acquire) != null) return;
        whole.failure_page.store(self.failure_page.load(.acquire), .release);
        whole.failure_file.store(self.failure_file.load(.acquire), .release);
    }

    /// A call begins, unless one of its segments is being taken away; `leave` ends it.
    pub fn enter(self: *const Job) bool {
        for (self.segments, 0..) |one, i| {
            if (one.segment.enter()) continue;
            for (self.segments[0..i]) |entered| entered.segment.leave();
            return false;
        }
        return true;
    }

    /// The same where a call that has entered goes on in another job.
    pub fn enter_again(self: *const Job) void {
        for (self.segments) |one| _ = one.segment.users.fetchAdd(1, .seq_cst);
    }

    pub fn leave(self: *const Job) void {
        for (self.segments) |one| one.segment.leave();
    }

    pub fn is_closing(self: *const Job) bool {
        for (self.segments) |one| if (one.segment.closing.load(.monotonic)) return true;
        return false;
    }

    pub fn file_at_fault(self: *const Job) File {
        return @enumFromInt(self.failure_file.load(.acquire));
    }

    pub fn outcome(self: *const Job) Outcome {
        return self.failure.load(.acquire);
    }

    /// True for the last query of the job, which is to be reported then.
    pub fn finish_query(self: *Job, query_outcome: Outcome, page: i64, file: File) bool {
        if (query_outcome != .ok and self.failure.cmpxchgStrong(.ok, query_outcome, .acq_rel, .acquire) == null) {
            self.failure_page.store(page, .release);
            self.failure_file.store(@intFromEnum(file), .release);
        }
        return self.remaining.fetchSub(1, .acq_rel) == 1;
    }
};

pub const Task = struct { job: *Job, query: u64 };

/// Jobs in the order they came, handed out query by query.
pub const Queue = struct {
    mutex: std.Thread.Mutex = .{},
    condition: std.Thread.Condition = .{},
    first: ?*Job = null,
    last: ?*Job = null,
    sleeping: u32 = 0,
    /// Awake and looking for a query: one that comes alone needs no signal.
    looking: u32 = 0,
    closed: bool = false,
    /// A hint that `take` would find something, read without the lock.
    waiting: std.atomic.Value(bool) = .init(false),

    /// False when the queue is closed: the job was not taken.
    pub fn push(self: *Queue, job: *Job) bool {
        const count = job.count - job.next;
        std.debug.assert(count > 0);
        job.remaining.store(count, .release);
        self.mutex.lock();
        defer self.mutex.unlock();
        if (self.closed) return false;
        job.following = null;
        if (self.last) |last| last.following = job else self.first = job;
        self.last = job;
        self.waiting.store(true, .release);
        if (self.sleeping == 0) return true;
        if (count > 1) self.condition.broadcast() else if (self.looking == 0) self.condition.signal();
        return true;
    }

    /// The next query; null when there is none (and, with `wait`, only when the queue is closed).
    pub fn take(self: *Queue, wait: bool) ?Task {
        if (!wait and !self.waiting.load(.acquire)) return null;
        self.mutex.lock();
        defer self.mutex.unlock();
        var looked = false;
        while (true) {
            if (self.first) |job| {
                const query = job.next;
                job.next += 1;
                if (job.next == job.count) {
                    self.first = job.following;
                    if (self.first == null) {
                        self.last = null;
                        self.waiting.store(false, .release);
                    }
                }
                // Jobs that came while this worker looked for work woke no other.
                if (looked and self.first != null and self.sleeping > 0) self.condition.signal();
                return .{ .job = job, .query = query };
            }
            if (!wait or self.closed) return null;
            if (!looked) {
                looked = true;
                self.looking += 1;
                self.mutex.unlock();
                self.look();
                self.mutex.lock();
                self.looking -= 1;
                continue;
            }
            self.sleeping += 1;
            self.condition.wait(&self.mutex);
            self.sleeping -= 1;
        }
    }

    /// Awake, but yields the processor to other threads.
    fn look(self: *const Queue) void {
        const begin_us = base.nowMicros();
        while (base.nowMicros() - begin_us < look_us) {
            for (0..32) |_| {
                if (self.waiting.load(.acquire)) return;
                std.atomic.spinLoopHint();
            }
            std.Thread.yield() catch {};
        }
    }

    /// No job enters any more, and sleepers wake up. Jobs inside are still handed out.
    pub fn close(self: *Queue) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        self.closed = true;
        self.condition.broadcast();
    }
};

test "takers that look and takers that sleep miss no job" {
    const Calls = struct {
        queue: Queue = .{},
        taken: std.atomic.Value(u32) = .init(0),

        fn on_done(_: *Job) void {}

        fn take_all(self: *@This()) void {
            while (self.queue.take(true)) |_| _ = self.taken.fetchAdd(1, .acq_rel);
        }
    };
    var calls: Calls = .{};
    var takers: [3]std.Thread = undefined;
    for (&takers) |*taker| taker.* = try std.Thread.spawn(.{}, Calls.take_all, .{&calls});
    const answers: Answers = .{};
    var jobs: [3]Job = undefined;
    var pushed: u32 = 0;
    for (0..600) |turn| {
        // One job, or several before the first is taken; at once, while takers look, or after they went to sleep.
        const count = 1 + turn % jobs.len;
        for (jobs[0..count]) |*job| {
            job.* = .{ .queries = &.{}, .query_bytes = 0, .dtype = .u8, .count = 1, .segments = &.{}, .answers = &answers, .on_done = Calls.on_done };
            try std.testing.expect(calls.queue.push(job));
        }
        pushed += @intCast(count);
        while (calls.taken.load(.acquire) < pushed) std.Thread.yield() catch {};
        std.Thread.sleep((turn % 4) * look_us * 500);
    }
    calls.queue.close();
    for (takers) |taker| taker.join();
    try std.testing.expectEqual(pushed, calls.taken.load(.acquire));
}
