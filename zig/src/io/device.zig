//! The device contract: a device is a type with these declarations and calls, chosen at compile time.
//!
//!     pub const kind: Kind;
//!     pub fn init(allocator, options: Options) InitError!Device    on any thread
//!     pub fn submit(device: *Device, read: *Read) void             queue it; never blocks, never fails, any number
//!     pub fn flush(device: *Device) void                           hand all that is queued to the system at once
//!     pub fn poll(device: *Device, done: []*Read, wait: Wait) usize
//!     pub fn in_flight(device: *const Device) u32
//!     pub fn drain(device: *Device) void
//!     pub fn deinit(device: *Device) void
//!
//! - `submit`, `flush`, `poll` and `drain` belong to one thread: the first that calls one of them. (An io_uring with a
//!   single issuer is bound to it.) `init` may run elsewhere; `deinit` too, once `drain` has run or nothing is in flight.
//! - At most `queue_depth` reads are with the system at a time. More are kept in order and follow as others complete.
//! - `poll` fills `done` with reads that ended, in any order, and returns how many. `.none` takes completed reads; `.one`
//!   waits for at least one while any is in flight (and flushes first). Every submitted read comes back exactly once,
//!   with `status` `.ok`, `.io` or `.short`; short and interrupted attempts are continued inside (read.zig).
//! - `in_flight`: reads submitted and not yet handed back.
//! - `drain` ends all: reads that the system has not begun become `.canceled`, the others are waited for; none of them
//!   is handed back by a later `poll`. Afterwards buffers may be freed. `deinit` drains.
//! - Nothing is allocated after `init`, but for the stacks of the pool's threads at its first flush.
const std = @import("std");
const base = @import("base");
const Read = @import("read.zig").Read;

pub const Kind = enum { uring, threads, simulated };

pub const Wait = enum { none, one };

pub const Options = struct {
    /// File 0 of reads without a descriptor. Stays the caller's, and open until `deinit`.
    file: ?std.posix.fd_t = null,
    /// File 1 of reads, on the same terms.
    second_file: ?std.posix.fd_t = null,
    /// Reads with the system at a time, of all files together.
    queue_depth: u32 = 64,
    /// Memory that most reads go to; registered with the kernel once, where it allows that. Reads may go elsewhere.
    buffers: []align(4096) u8 = &.{},
    /// The simulated device alone looks at these: the fault plan's seed, and which faults (sim/device.zig).
    simulated_seed: u64 = 0,
    simulated_faults: u32 = 0,
};

pub const queue_depth_max = base.limits.ranges.queue_depth.max;
/// Files that one device reads.
pub const file_count = 2;

pub const InitError = error{
    OutOfMemory,
    /// The kernel, or a seccomp filter, does not let this process use io_uring.
    NotPermitted,
    /// The kernel is too old or built without it.
    Unsupported,
    /// Locked memory, file descriptors or kernel memory ran out.
    SystemResources,
};

/// Compile error where `Device` misses part of the contract.
pub fn check(comptime Device: type) void {
    comptime {
        const allocator = std.mem.Allocator;
        std.debug.assert(@TypeOf(Device.kind) == Kind);
        std.debug.assert(@TypeOf(Device.init) == fn (allocator, Options) InitError!Device);
        std.debug.assert(@TypeOf(Device.submit) == fn (*Device, *Read) void);
        std.debug.assert(@TypeOf(Device.flush) == fn (*Device) void);
        std.debug.assert(@TypeOf(Device.poll) == fn (*Device, []*Read, Wait) usize);
        std.debug.assert(@TypeOf(Device.in_flight) == fn (*const Device) u32);
        std.debug.assert(@TypeOf(Device.drain) == fn (*Device) void);
        std.debug.assert(@TypeOf(Device.deinit) == fn (*Device) void);
    }
}
