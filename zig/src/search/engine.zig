//! Workers over one open index (worker.zig), and the queue that hands them queries.
const std = @import("std");
const io = @import("io");
const job_file = @import("job.zig");
const Job = job_file.Job;
const Queue = job_file.Queue;
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
    /// pages.bin, open until `deinit`.
    file: std.posix.fd_t,
    /// vectors.bin, where the index stores them and searches may ask for exact distances.
    vectors_file: ?std.posix.fd_t = null,
    simulated_seed: u64 = 0,
    simulated_faults: u32 = 0,
};

pub const queries_in_flight_default = 16;
pub const queue_depth_default = 64;

pub fn Engine(comptime Device: type) type {
    io.check_device(Device);
    return struct {
        const Self = @This();

        allocator: std.mem.Allocator,
        shared: *const Shared,
        queue: Queue = .{},
        workers: []Worker(Device),
        closed: std.atomic.Value(bool) = .init(false),

        pub const InitError = io.InitError || error{ThreadFailed};

        pub fn init(allocator: std.mem.Allocator, shared: *const Shared, options: Options) InitError!*Self {
            assert(options.threads > 0 and options.queries_in_flight > 0);
            const self = try allocator.create(Self);
            errdefer allocator.destroy(self);
            const workers = try allocator.alloc(Worker(Device), options.threads);
            errdefer allocator.free(workers);
            self.* = .{ .allocator = allocator, .shared = shared, .workers = workers };
            var made: usize = 0;
            errdefer for (workers[0..made]) |*worker| worker.deinit(allocator);
            for (workers, 0..) |*worker, i| {
                var own = options;
                own.simulated_seed +%= i;
                try worker.init(allocator, shared, &self.queue, &self.closed, own);
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

        /// Queries under way end with `.closed`; returns when all workers have stopped.
        pub fn deinit(self: *Self) void {
            self.closed.store(true, .release);
            self.queue.close();
            for (self.workers) |*worker| worker.thread.join();
            for (self.workers) |*worker| worker.deinit(self.allocator);
            self.allocator.free(self.workers);
            self.allocator.destroy(self);
        }

        pub fn memory_bytes(self: *const Self) u64 {
            var sum: u64 = 0;
            for (self.workers) |*worker| sum += worker.memory_bytes();
            return sum;
        }

        pub fn submit(self: *Self, job: *Job) bool {
            return self.queue.push(job);
        }
    };
}
