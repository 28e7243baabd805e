//! The io room: reading pages from a device. device.zig states the contract; a device is a type chosen at compile time.
const read = @import("read.zig");
const device = @import("device.zig");

pub const Read = read.Read;
pub const Status = read.Status;
pub const Queue = read.Queue;
pub const sector_size = read.sector_size;

pub const Kind = device.Kind;
pub const Wait = device.Wait;
pub const Options = device.Options;
pub const InitError = device.InitError;
pub const queue_depth_max = device.queue_depth_max;
pub const file_count = device.file_count;
pub const check_device = device.check;

/// Handles one attempt's result; for devices outside this room (the simulated one).
pub const advance = read.advance;
pub const retries_max = read.retries_max;

pub const Uring = @import("uring.zig").Uring;
pub const Threads = @import("threads.zig").Threads;

pub const probe = @import("probe.zig");
pub const open_pages = probe.open_pages;
pub const Pages = probe.Pages;
pub const Report = probe.Report;

/// Tests that every device passes; called from the tests of the room that has the device.
pub const conformance = @import("conformance.zig");

test {
    _ = read;
    _ = read;
    _ = probe;
    _ = conformance;
    _ = @import("threads.zig");
    _ = @import("uring.zig");
}
