//! Kernels on the host, for tests: the exports of `entry.zig`, called for one warp after the other.
const std = @import("std");
const fake = @import("fake.zig");
const layout = @import("layout.zig");
const search = @import("kernels/search.zig");

/// Shared memory of one warp.
pub const SharedMemory = []align(16) u8;

/// `velo_search` over addresses of this process's memory: all queries of a batch. Shared memory is not zeroed on a GPU, so here it is
/// filled with values that no kernel may rely on.
pub fn velo_search(index: layout.Index, batch: layout.Batch, shared: SharedMemory) void {
    run(.query, &index, &batch, shared);
}

/// The same for vertices to be inserted into a graph.
pub fn velo_insert(index: layout.Index, batch: layout.Batch, shared: SharedMemory) void {
    run(.vertex, &index, &batch, shared);
}

fn run(comptime kind: search.Kind, index: *const layout.Index, batch: *const layout.Batch, shared: SharedMemory) void {
    const own = shared[0..batch.warp_bytes()];
    for (0..batch.count) |query| {
        @memset(own, 0xaa);
        search.run(kind, index, batch, @intCast(query), own.ptr);
    }
}

/// The same for `fake`.
pub const kernels = [_]fake.Kernel{
    .{ .name = "velo_search", .argument_bytes = &argument_bytes, .run = launch(velo_search) },
    .{ .name = "velo_insert", .argument_bytes = &argument_bytes, .run = launch(velo_insert) },
};

pub const argument_bytes = [_]usize{ @sizeOf(layout.Index), @sizeOf(layout.Batch) };

fn launch(comptime kernel: fn (layout.Index, layout.Batch, SharedMemory) void) *const fn ([]const []const u8, u32, u32) void {
    return struct {
        fn whole(arguments: []const []const u8, blocks: u32, threads: u32) void {
            const index = std.mem.bytesToValue(layout.Index, arguments[0]);
            const batch = std.mem.bytesToValue(layout.Batch, arguments[1]);
            std.debug.assert(threads % layout.lanes == 0 and blocks * (threads / layout.lanes) >= batch.count);
            // Vectors of 32 lanes take much stack without optimization.
            const thread = std.Thread.spawn(.{ .stack_size = 64 << 20 }, all, .{ index, batch }) catch @panic("no thread for a kernel");
            thread.join();
        }

        fn all(index: layout.Index, batch: layout.Batch) void {
            var shared: [48 << 10]u8 align(16) = undefined;
            kernel(index, batch, &shared);
        }
    }.whole;
}
