//! The device where io_uring is refused: a few threads that call pread, behind the same contract.
//!
//! Ownership: the caller's thread alone holds `queue`; `pending` and `completed` are shared under one mutex.
//! Threads start at the first flush. If none can be started the caller's thread reads for itself inside `poll`, so the
//! device is slow then, but never stuck.
const std = @import("std");
const assert = std.debug.assert;
const contract = @import("device.zig");
const transfer = @import("read.zig");
const Read = @import("read.zig").Read;
const Queue = @import("read.zig").Queue;

/// More threads than this did not bring more reads a second, on a drive that answers 85,000 of them.
const threads_max = 16;
const stack_size = 256 * 1024;

/// On the heap: threads point to it, and the device itself may be moved.
const Shared = struct {
    files: [contract.file_count]?std.posix.fd_t,
    queue_depth: u32,
    mutex: std.Thread.Mutex = .{},
    /// Signaled when `pending` gained a read that a thread may take, or `stopping` was set.
    work: std.Thread.Condition = .{},
    /// Signaled when `completed` was empty and gained a read.
    ended: std.Thread.Condition = .{},
    pending: Queue = .{},
    completed: Queue = .{},
    /// Threads that wait for work.
    idle_count: u32 = 0,
    stopping: bool = false,

    fn run(shared: *Shared) void {
        shared.mutex.lock();
        defer shared.mutex.unlock();
        while (true) {
            while (shared.pending.pop()) |read| {
                shared.mutex.unlock();
                execute(&shared.files, read);
                shared.mutex.lock();
                shared.completed.push(read);
                if (shared.completed.count == 1) shared.ended.signal();
            }
            if (shared.stopping) return;
            shared.idle_count += 1;
            shared.work.wait(&shared.mutex);
            shared.idle_count -= 1;
        }
    }
};

/// One read, from its first attempt to its end.
fn execute(files: *const [contract.file_count]?std.posix.fd_t, read: *Read) void {
    const file = read.fd orelse files[read.file].?;
    while (true) {
        const returned = std.os.linux.pread(file, read.attempt_buffer(), read.attempt_length(), @intCast(read.attempt_offset()));
        // A raw system call: a byte count, or a negative errno.
        const result: i32 = @intCast(@as(isize, @bitCast(returned)));
        if (transfer.advance(read, result) == .done) return;
    }
}

pub const Threads = struct {
    pub const kind: contract.Kind = .threads;

    allocator: std.mem.Allocator,
    shared: *Shared,
    threads: [threads_max]std.Thread = undefined,
    thread_count: u32 = 0,
    /// False once the threads were started, or could not be.
    unstarted: bool = true,
    /// Submitted, not yet flushed.
    queue: Queue = .{},
    in_flight_count: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, options: contract.Options) contract.InitError!Threads {
        assert(options.queue_depth > 0);
        assert(options.queue_depth <= contract.queue_depth_max);
        const shared = try allocator.create(Shared);
        shared.* = .{ .files = .{ options.file, options.second_file }, .queue_depth = options.queue_depth };
        return .{ .allocator = allocator, .shared = shared };
    }

    pub fn deinit(device: *Threads) void {
        device.drain();
        device.shared.mutex.lock();
        device.shared.stopping = true;
        device.shared.mutex.unlock();
        device.shared.work.broadcast();
        for (device.threads[0..device.thread_count]) |thread| thread.join();
        device.allocator.destroy(device.shared);
        device.* = undefined;
    }

    pub fn submit(device: *Threads, read: *Read) void {
        read.verify();
        device.queue.push(read);
        device.in_flight_count += 1;
    }

    pub fn flush(device: *Threads) void {
        if (device.queue.count == 0) return;
        if (device.unstarted) device.start();
        const shared = device.shared;
        shared.mutex.lock();
        const wakes = @min(device.queue.count, shared.idle_count);
        shared.pending.append(&device.queue);
        shared.mutex.unlock();
        if (wakes == device.thread_count) return shared.work.broadcast();
        for (0..wakes) |_| shared.work.signal();
    }

    pub fn poll(device: *Threads, done: []*Read, wait: contract.Wait) usize {
        assert(done.len > 0);
        device.flush();
        if (device.in_flight_count == 0) return 0;
        const shared = device.shared;
        shared.mutex.lock();
        defer shared.mutex.unlock();
        if (device.thread_count == 0) {
            // No other thread reads: one here, so that poll makes progress in every mode.
            if (shared.pending.pop()) |read| {
                execute(&shared.files, read);
                shared.completed.push(read);
            }
        }
        while (wait == .one and shared.completed.count == 0) shared.ended.wait(&shared.mutex);
        var count: usize = 0;
        while (count < done.len) : (count += 1) done[count] = shared.completed.pop() orelse break;
        device.in_flight_count -= @intCast(count);
        return count;
    }

    pub fn in_flight(device: *const Threads) u32 {
        return device.in_flight_count;
    }

    pub fn drain(device: *Threads) void {
        const shared = device.shared;
        device.in_flight_count -= device.queue.count;
        device.queue.cancel();
        shared.mutex.lock();
        defer shared.mutex.unlock();
        device.in_flight_count -= shared.pending.count;
        shared.pending.cancel();
        while (true) {
            while (shared.completed.pop()) |_| device.in_flight_count -= 1;
            if (device.in_flight_count == 0) return;
            shared.ended.wait(&shared.mutex);
        }
    }

    fn start(device: *Threads) void {
        device.unstarted = false;
        const wanted = @min(device.shared.queue_depth, threads_max);
        while (device.thread_count < wanted) : (device.thread_count += 1) {
            device.threads[device.thread_count] = std.Thread.spawn(.{ .stack_size = stack_size }, Shared.run, .{device.shared}) catch return;
        }
    }
};

comptime {
    contract.check(Threads);
}

test "without a single thread the caller reads for itself" {
    var folder = std.testing.tmpDir(.{});
    defer folder.cleanup();
    try folder.dir.writeFile(.{ .sub_path = "data", .data = "x" ** 4096 });
    const file = try folder.dir.openFile("data", .{});
    defer file.close();
    var device = try Threads.init(std.testing.allocator, .{ .file = file.handle, .queue_depth = 2 });
    defer device.deinit();
    device.unstarted = false;
    var buffers: [3][4096]u8 align(4096) = undefined;
    var reads: [3]Read = undefined;
    for (&reads, &buffers) |*read, *buffer| {
        read.* = .{ .offset = 0, .buffer = buffer, .length = 4096 };
        device.submit(read);
    }
    var done: [3]*Read = undefined;
    var count: usize = 0;
    while (device.in_flight() > 0) count += device.poll(&done, .one);
    try std.testing.expectEqual(3, count);
    for (&reads) |*read| try std.testing.expectEqual(.ok, read.status);
    device.submit(&reads[0]); // canceled by deinit
}
