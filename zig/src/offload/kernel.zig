//! The kernel of this room for both drivers: PTX, and the host function that the fake one runs instead.
const std = @import("std");
const gpu = @import("gpu");
const layout = gpu.layout;

pub const name = "velo_search";
pub const ptx: [:0]const u8 = gpu.ptx;

/// For `gpu.fake`.
pub const on_host: gpu.fake.Kernel = .{ .name = name, .argument_bytes = &.{ @sizeOf(layout.Index), @sizeOf(layout.Batch) }, .run = run };

fn run(arguments: []const []const u8, blocks: u32, threads: u32) void {
    const index = std.mem.bytesToValue(layout.Index, arguments[0]);
    const batch = std.mem.bytesToValue(layout.Batch, arguments[1]);
    std.debug.assert(threads % layout.lanes == 0 and blocks * (threads / layout.lanes) >= batch.count);
    // Vectors of 32 lanes take much stack without optimization.
    const thread = std.Thread.spawn(.{ .stack_size = 64 << 20 }, run_all, .{ index, batch }) catch @panic("no thread for a kernel");
    thread.join();
}

fn run_all(index: layout.Index, batch: layout.Batch) void {
    var room: [48 << 10]u8 align(16) = undefined;
    gpu.host.velo_search(index, batch, &room);
}
