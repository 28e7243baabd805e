//! The kernels of both drivers: PTX, and the host functions that the fake one runs instead.
const std = @import("std");
const gpu = @import("gpu");
const layout = gpu.layout;

pub const name = "velo_search";
pub const ptx: [:0]const u8 = gpu.ptx;

/// For `gpu.fake`.
pub const on_host: gpu.fake.Kernel = on_host_of(name, gpu.host.velo_search);
/// The kernel of builds (`gpu.Linker`).
pub const insertion_on_host: gpu.fake.Kernel = on_host_of(gpu.linker.kernel_name, gpu.host.velo_insert);

const Host = fn (layout.Index, layout.Batch, gpu.host.Room) void;

fn on_host_of(comptime own_name: []const u8, comptime kernel: Host) gpu.fake.Kernel {
    const own = struct {
        fn run(arguments: []const []const u8, blocks: u32, threads: u32) void {
            run_whole(kernel, arguments, blocks, threads);
        }
    };
    return .{ .name = own_name, .argument_bytes = &.{ @sizeOf(layout.Index), @sizeOf(layout.Batch) }, .run = own.run };
}

fn run_whole(comptime kernel: Host, arguments: []const []const u8, blocks: u32, threads: u32) void {
    const index = std.mem.bytesToValue(layout.Index, arguments[0]);
    const batch = std.mem.bytesToValue(layout.Batch, arguments[1]);
    std.debug.assert(threads % layout.lanes == 0 and blocks * (threads / layout.lanes) >= batch.count);
    // Vectors of 32 lanes take much stack without optimization.
    const thread = std.Thread.spawn(.{ .stack_size = 64 << 20 }, run_all, .{ kernel, index, batch }) catch @panic("no thread for a kernel");
    thread.join();
}

fn run_all(comptime kernel: Host, index: layout.Index, batch: layout.Batch) void {
    var room: [48 << 10]u8 align(16) = undefined;
    kernel(index, batch, &room);
}
