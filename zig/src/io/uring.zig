//! The io_uring device: one ring, one thread, the files that reads name by number, or by descriptor.
//!
//! Flags: single issuer, deferred and cooperative task work, where the kernel takes them (uring_shim.c falls back).
//! No IOPOLL (drives behind virtio and most file systems answer EOPNOTSUPP) and no SQPOLL (it burns a core that
//! searching needs). The files and the buffers are registered when the locked-memory limit allows it.
const std = @import("std");
const assert = std.debug.assert;
const contract = @import("device.zig");
const transfer = @import("read.zig");
const Read = @import("read.zig").Read;
const Queue = @import("read.zig").Queue;
const E = std.os.linux.E;

const Ring = opaque {};
const Completion = extern struct { context: u64, result: i32, reserved: u32 };
extern fn velo_uring_open(ring_out: *?*Ring, entries: c_uint, fd: c_int, second_fd: c_int, buffers: ?*anyopaque, buffers_size: usize) c_int;
extern fn velo_uring_close(ring: *Ring) void;
extern fn velo_uring_enable(ring: *Ring) c_int;
extern fn velo_uring_read(ring: *Ring, file: c_uint, another_fd: c_int, offset: u64, buffer: *anyopaque, length: c_uint, context: u64) c_int;
extern fn velo_uring_submit(ring: *Ring, wait_count: c_uint) c_int;
extern fn velo_uring_reap(ring: *Ring, completions: [*]Completion, capacity: c_uint) c_uint;

pub const Uring = struct {
    pub const kind: contract.Kind = .uring;

    ring: *Ring,
    queue_depth: u32,
    /// Whether this thread has bound the ring to itself.
    enabled: bool = false,
    /// Submitted by the caller, not yet prepared in the ring.
    queue: Queue = .{},
    /// Prepared in the ring, or with the kernel; never above `queue_depth`, and the completion queue holds twice that,
    /// so it cannot overflow.
    in_ring: u32 = 0,
    /// The reads that `in_ring` counts, doubly linked.
    active: ?*Read = null,
    /// Of `in_ring`: prepared, but not known to be taken by the kernel.
    prepared: u32 = 0,
    /// Set when the kernel refuses the ring for good (a seccomp filter installed after `init`, a forked child): from
    /// then on every read ends with it, because waiting would never end.
    broken_errno: i32 = 0,

    pub fn init(_: std.mem.Allocator, options: contract.Options) contract.InitError!Uring {
        var errno: i32 = 0;
        return open(options, &errno);
    }

    /// `init` that also tells the kernel's errno (0 on success), for the probe.
    pub fn open(options: contract.Options, errno_out: *i32) contract.InitError!Uring {
        assert(options.queue_depth > 0);
        assert(options.queue_depth <= contract.queue_depth_max);
        var ring: ?*Ring = null;
        const status = velo_uring_open(&ring, options.queue_depth, options.file orelse -1, options.second_file orelse -1, options.buffers.ptr, options.buffers.len);
        errno_out.* = -status;
        if (status < 0) return switch (@as(E, @enumFromInt(-status))) {
            // kernel.io_uring_disabled, or a seccomp filter.
            .PERM, .ACCES => error.NotPermitted,
            // No such system call, a filter that says so, or flags and opcodes that this kernel lacks.
            .NOSYS, .INVAL, .OPNOTSUPP => error.Unsupported,
            // RLIMIT_MEMLOCK, RLIMIT_NOFILE, or the kernel's own memory.
            else => error.SystemResources,
        };
        return .{ .ring = ring.?, .queue_depth = options.queue_depth };
    }

    pub fn deinit(device: *Uring) void {
        device.drain();
        velo_uring_close(device.ring);
        device.* = undefined;
    }

    pub fn submit(device: *Uring, read: *Read) void {
        read.verify();
        device.queue.push(read);
    }

    pub fn flush(device: *Uring) void {
        device.prepare();
        if (device.prepared > 0) device.enter(0);
    }

    pub fn poll(device: *Uring, done: []*Read, wait: contract.Wait) usize {
        assert(done.len > 0);
        var count = device.reap(done);
        if (wait == .none) return count;
        // Reads beyond the depth, and attempts to be repeated, take the places that completions freed. When the caller
        // is about to wait the same system call does both.
        device.prepare();
        if (count > 0) {
            if (device.prepared > 0) device.enter(0);
            return count;
        }
        while (count == 0 and device.in_flight() > 0) {
            device.enter(1);
            count = device.reap(done);
            device.prepare();
        }
        if (device.prepared > 0) device.enter(0);
        return count;
    }

    pub fn in_flight(device: *const Uring) u32 {
        return device.queue.count + device.in_ring;
    }

    pub fn drain(device: *Uring) void {
        device.queue.cancel();
        var done: [64]*Read = undefined;
        while (device.in_ring > 0) {
            // Attempts that a completion asks to repeat go back to the queue and are not begun again.
            if (device.reap(&done) == 0 and device.in_ring > 0) device.enter(1);
            device.queue.cancel();
        }
    }

    /// Moves reads from the queue into the ring while there is room.
    fn prepare(device: *Uring) void {
        while (device.in_ring < device.queue_depth) {
            const read = device.queue.pop() orelse return;
            const taken = velo_uring_read(device.ring, read.file, read.fd orelse -1, read.attempt_offset(), read.attempt_buffer(), read.attempt_length(), @intFromPtr(read));
            if (taken == 0) { // the submission queue is full: its turn comes after the next submit
                device.queue.push_front(read);
                return;
            }
            device.link(read);
            device.prepared += 1;
        }
    }

    /// One system call: hands over what is prepared, and waits for `wait_count` completions.
    fn enter(device: *Uring, wait_count: u32) void {
        if (device.broken_errno != 0) return;
        if (!device.enabled) {
            const status = velo_uring_enable(device.ring);
            if (status < 0) return device.give_up(-status);
            device.enabled = true;
        }
        const status = velo_uring_submit(device.ring, wait_count);
        if (status >= 0) {
            device.prepared -= @min(device.prepared, @as(u32, @intCast(status)));
            return;
        }
        switch (@as(E, @enumFromInt(-status))) {
            // Entries that were not taken stay prepared and go along with the next call.
            .INTR, .AGAIN, .BUSY => {},
            else => device.give_up(-status),
        }
    }

    /// Completions into `done`; those to be repeated go to the head of the queue.
    fn reap(device: *Uring, done: []*Read) usize {
        if (device.broken_errno != 0) return device.reap_broken(done);
        var completions: [64]Completion = undefined;
        var count: usize = 0;
        while (count < done.len) {
            const wanted = @min(completions.len, done.len - count);
            const found = velo_uring_reap(device.ring, &completions, @intCast(wanted));
            for (completions[0..found]) |completion| {
                const read: *Read = @ptrFromInt(completion.context);
                device.unlink(read);
                switch (transfer.advance(read, completion.result)) {
                    .again => device.queue.push_front(read),
                    .done => {
                        done[count] = read;
                        count += 1;
                    },
                }
            }
            if (found < wanted) break;
        }
        return count;
    }

    fn give_up(device: *Uring, errno: i32) void {
        device.broken_errno = errno;
    }

    fn reap_broken(device: *Uring, done: []*Read) usize {
        device.prepared = 0;
        var count: usize = 0;
        while (count < done.len) : (count += 1) {
            const read = device.active orelse device.queue.pop() orelse break;
            if (read == device.active) device.unlink(read);
            read.status = .io;
            read.errno = device.broken_errno;
            done[count] = read;
        }
        return count;
    }

    fn link(device: *Uring, read: *Read) void {
        read.previous = null;
        read.next = device.active;
        if (device.active) |head| head.previous = read;
        device.active = read;
        device.in_ring += 1;
    }

    fn unlink(device: *Uring, read: *Read) void {
        if (read.next) |next| next.previous = read.previous;
        if (read.previous) |previous| previous.next = read.next else device.active = read.next;
        read.next = null;
        read.previous = null;
        device.in_ring -= 1;
    }
};

comptime {
    contract.check(Uring);
}

test "a ring that the kernel refuses for good ends its reads" {
    const memory = try std.posix.memfd_create("pages", 0);
    defer std.posix.close(memory);
    var errno: i32 = 0;
    // A kernel that refuses io_uring altogether: the conformance suite says so aloud.
    // The kernel rounds three up to four entries: the depth alone keeps a fourth read out.
    var device = Uring.open(.{ .file = memory, .queue_depth = 3 }, &errno) catch return error.SkipZigTest;
    defer device.deinit();
    var buffer: [4096]u8 align(4096) = undefined;
    var reads: [6]Read = undefined;
    for (&reads) |*read| {
        read.* = .{ .offset = 0, .buffer = &buffer, .length = 4096 };
        device.submit(read);
    }
    device.prepare();
    try std.testing.expectEqual(3, device.in_ring);
    device.give_up(@intFromEnum(E.PERM));
    var done: [4]*Read = undefined;
    var count: usize = 0;
    while (device.in_flight() > 0) count += device.poll(&done, .one);
    try std.testing.expectEqual(6, count);
    for (&reads) |*read| {
        try std.testing.expectEqual(.io, read.status);
        try std.testing.expectEqual(@as(i32, @intFromEnum(E.PERM)), read.errno);
    }
}
