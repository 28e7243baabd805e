//! Workers (worker.zig) over open indexes (part.zig), and the queue that hands them queries.
const std = @import("std");
const io = @import("io");
const layout = @import("layout");
const job_file = @import("job.zig");
const Job = job_file.Job;
const Direct = @import("direct.zig").Direct;
const Queue = job_file.Queue;
const Part = @import("part.zig").Part;
const Shared = @import("shared.zig").Shared;
const Worker = @import("worker.zig").Worker;
const processors = @import("processors.zig");
const assert = std.debug.assert;

pub const Options = struct {
    threads: u32,
    /// Queries in flight a worker (B); at most so many where `adaptive`.
    queries_in_flight: u32 = queries_in_flight_default,
    /// B follows from what is measured while running (live_limit).
    adaptive: bool = false,
    queue_depth: u32 = queue_depth_default,
    /// pages.bin of the first part, open until `deinit`; the devices know it by number.
    file: std.posix.fd_t,
    /// Its vectors.bin, where the index stores them and searches may ask for exact distances.
    vectors_file: ?std.posix.fd_t = null,
    simulated_seed: u64 = 0,
    simulated_faults: u32 = 0,

    /// What buffers are made for: the first part, and others that need no more.
    pub const Room = struct {
        page_sizes: [io.file_count]u32,
        /// Queries hold on to pages.
        holds_pages: bool,

        pub fn of(shared: *const Shared) Room {
            const reader = shared.reader;
            // Where it stores none others may: untouched buffers take no memory.
            const vectors: layout.vectors.Geometry = .of(reader.header.dim_in * @as(u32, @intCast(reader.dtype.bytes())), 0);
            return .{ .page_sizes = .{ reader.pages_header.page_size, vectors.page_size }, .holds_pages = shared.plan == .links_on_disk };
        }

        fn holds(self: Room, other: Room) bool {
            for (self.page_sizes, other.page_sizes) |own, wanted| if (wanted > own) return false;
            return self.holds_pages or !other.holds_pages;
        }
    };
};

pub const queries_in_flight_default = 16;
pub const queue_depth_default = 64;

pub fn Engine(comptime Device: type) type {
    io.check_device(Device);
    return struct {
        const Self = @This();

        allocator: std.mem.Allocator,
        queue: Queue = .{},
        workers: []Worker(Device),
        room: Options.Room,
        slots_each: u32,
        direct: Direct,
        part_next: std.atomic.Value(u32) = .init(0),
        /// One of the parts stores vectors.
        reads_vectors: std.atomic.Value(bool) = .init(false),

        pub const InitError = io.InitError || error{ThreadFailed};

        /// For `first` and other parts that need no larger buffers; none of them is attached yet.
        pub fn init(allocator: std.mem.Allocator, first: *const Shared, options: Options) InitError!*Self {
            assert(options.threads > 0 and options.queries_in_flight > 0);
            const self = try allocator.create(Self);
            errdefer allocator.destroy(self);
            const workers = try allocator.alloc(Worker(Device), options.threads);
            errdefer allocator.free(workers);
            self.* = .{ .allocator = allocator, .workers = workers, .room = .of(first), .slots_each = options.queries_in_flight, .direct = try .init(allocator, options.threads, options.threads * options.queries_in_flight) };
            errdefer self.direct.deinit(allocator);
            var made: usize = 0;
            errdefer for (workers[0..made]) |*worker| worker.deinit(allocator);
            for (workers, 0..) |*worker, i| {
                var own = options;
                own.simulated_seed +%= i;
                try worker.init(allocator, i, self.room, &self.queue, own);
                made += 1;
            }
            var started: usize = 0;
            errdefer {
                self.queue.close();
                for (workers[0..started]) |*worker| worker.thread.join();
            }
            const processor = processors.take(options.threads);
            for (workers, 0..) |*worker, i| {
                worker.processor = processor +% @as(u32, @intCast(i));
                worker.thread = std.Thread.spawn(.{ .stack_size = 512 * 1024 }, Worker(Device).run, .{worker}) catch return error.ThreadFailed;
                started += 1;
            }
            return self;
        }

        /// An index that these workers search from now on, until it is detached. `files` as in `Part`.
        pub fn attach(self: *Self, shared: *const Shared, files: [io.file_count]?std.posix.fd_t) error{ OutOfMemory, TooLarge }!*Part {
            if (!self.room.holds(.of(shared))) return error.TooLarge;
            const part = try self.allocator.create(Part);
            errdefer self.allocator.destroy(part);
            if (shared.reader.vectors != null) self.reads_vectors.store(true, .monotonic);
            const number: u31 = @truncate(self.part_next.fetchAdd(1, .monotonic));
            part.* = try .init(shared, files, number, self.workers.len * self.slots_each + Direct.count_of(@intCast(self.workers.len)));
            return part;
        }

        /// Calls over it end with `.closed`; returns when they have.
        pub fn detach(self: *Self, part: *Part) void {
            part.close();
            part.deinit();
            self.allocator.destroy(part);
        }

        /// No part is attached any more. Returns when all workers have stopped.
        pub fn deinit(self: *Self) void {
            self.queue.close();
            for (self.workers) |*worker| worker.thread.join();
            for (self.workers) |*worker| worker.deinit(self.allocator);
            self.allocator.free(self.workers);
            self.direct.deinit(self.allocator);
            self.allocator.destroy(self);
        }

        pub fn memory_bytes(self: *const Self) u64 {
            var sum: u64 = 0;
            for (self.workers) |*worker| sum += worker.memory_bytes(self.reads_vectors.load(.monotonic));
            return sum;
        }

        /// Answers the job on this thread where it takes no reads; false where it is to be submitted, and nothing was done.
        pub fn answer(self: *Self, job: *Job) bool {
            if (!Direct.may_answer(job) or !job.enter()) return false;
            defer job.leave();
            return self.direct.answer(job);
        }

        /// False when a part, or all of it, is being closed: the job was not taken.
        pub fn submit(self: *Self, job: *Job) bool {
            if (!job.enter()) return false;
            if (self.queue.push(job)) return true;
            job.leave();
            return false;
        }
    };
}
