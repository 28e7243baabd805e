//! Kernels on the host, for tests: the exports of `entry.zig`, called for one warp after the other.
const std = @import("std");
const layout = @import("layout.zig");
const search = @import("kernels/search.zig");

/// Shared memory of one warp.
pub const Room = []align(16) u8;

/// `velo_search` over addresses of this process's memory: all queries of a batch. Memory of kernels is not zeroed, so the room is
/// filled with values that no kernel may rely on.
pub fn velo_search(index: layout.Index, batch: layout.Batch, room: Room) void {
    run(.query, &index, &batch, room);
}

/// The same for vertices to be inserted into a graph.
pub fn velo_insert(index: layout.Index, batch: layout.Batch, room: Room) void {
    run(.vertex, &index, &batch, room);
}

fn run(comptime kind: search.Kind, index: *const layout.Index, batch: *const layout.Batch, room: Room) void {
    const own = room[0..batch.warp_bytes()];
    for (0..batch.count) |query| {
        @memset(own, 0xaa);
        search.run(kind, index, batch, @intCast(query), own.ptr);
    }
}
