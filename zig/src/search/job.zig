//! A call of search as the workers see it, and the queue between callers and workers.
const std = @import("std");
const filter_room = @import("filter");
const index = @import("index");
const Parameters = @import("parameters.zig").Parameters;

/// What becomes of a query; capi maps each to a velo_status.
pub const Outcome = enum(u8) { ok, corrupt, io, timeout, closed, canceled };

/// Where results go: velo_search_out of zig/velo.h, field by field. Any pointer may be null.
pub const Out = extern struct {
    struct_size: u32 = @sizeOf(Out),
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
};

pub const Job = struct {
    queries: []const u8,
    query_bytes: usize,
    dtype: index.Dtype,
    count: u64,
    /// None, one for all, or one a query.
    filters: []const ?*const filter_room.Filter,
    parameters: Parameters,
    /// One a query, or null: a vertex that is taken as absent.
    excluded: ?[*]const u32 = null,
    /// base.nowMicros after which queries give up; 0 is never.
    deadline_us: u64 = 0,
    out: *const Out,
    /// Called by the worker that ends the last query; the job may be gone when it returns.
    on_done: *const fn (job: *Job) void,

    /// Set by whoever no longer wants the answer: its queries end as `.canceled` where they stand.
    canceled: std.atomic.Value(bool) = .init(false),

    // The queue's.
    next: u64 = 0,
    following: ?*Job = null,
    // The workers'.
    remaining: std.atomic.Value(u64) = .init(0),
    /// The first outcome that was not ok, and its page.
    failure: std.atomic.Value(u8) = .init(0),
    failure_page: std.atomic.Value(i64) = .init(-1),

    pub fn filter_of(self: *const Job, query: u64) ?*const filter_room.Filter {
        return switch (self.filters.len) {
            0 => null,
            1 => self.filters[0],
            else => self.filters[@intCast(query)],
        };
    }

    pub fn outcome(self: *const Job) Outcome {
        return @enumFromInt(self.failure.load(.acquire));
    }

    pub fn finish_query(self: *Job, query_outcome: Outcome, page: i64) void {
        if (query_outcome != .ok and self.failure.cmpxchgStrong(0, @intFromEnum(query_outcome), .acq_rel, .acquire) == null)
            self.failure_page.store(page, .release);
        if (self.remaining.fetchSub(1, .acq_rel) == 1) self.on_done(self);
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
    closed: bool = false,
    /// A hint that `take` would find something, read without the lock.
    waiting: std.atomic.Value(bool) = .init(false),

    /// False when the queue is closed: the job was not taken.
    pub fn push(self: *Queue, job: *Job) bool {
        std.debug.assert(job.count > 0);
        job.remaining.store(job.count, .release);
        self.mutex.lock();
        defer self.mutex.unlock();
        if (self.closed) return false;
        job.following = null;
        if (self.last) |last| last.following = job else self.first = job;
        self.last = job;
        self.waiting.store(true, .release);
        if (self.sleeping > 0) {
            if (job.count == 1) self.condition.signal() else self.condition.broadcast();
        }
        return true;
    }

    /// The next query; null when there is none (and, with `wait`, only when the queue is closed).
    pub fn take(self: *Queue, wait: bool) ?Task {
        if (!wait and !self.waiting.load(.acquire)) return null;
        self.mutex.lock();
        defer self.mutex.unlock();
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
                return .{ .job = job, .query = query };
            }
            if (!wait or self.closed) return null;
            self.sleeping += 1;
            self.condition.wait(&self.mutex);
            self.sleeping -= 1;
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
