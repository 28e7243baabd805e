//! Live data in worlds of several processes (world.zig), and the first write to a folder step by step.
const std = @import("std");
const live_room = @import("live");
const handle_file = @import("handle.zig");
const sim_store = @import("store.zig");
const world = @import("world.zig");
const worlds = @import("worlds.zig");
const Handle = handle_file.Handle;
const SimulatedDisk = sim_store.SimulatedDisk;
const SimulatedStore = sim_store.SimulatedStore;

test "thousands of worlds of several processes, each with kills, crashes, full disks and failed syncs of its own" {
    if (worlds.only()) |one| {
        _ = try worlds.run(world.run, one.seed, one.crash_at);
        return;
    }
    const count = worlds.count(10_000, 20, "VELO_LIVE_RUNS");
    var nested: u64 = 0;
    for (0..count) |turn| nested += try worlds.run(world.run, worlds.first_seed() + turn, null);
    try std.testing.expect(nested > count);
}

test "a power cut at every third change of some worlds" {
    for (0..worlds.crash_count(20)) |turn| {
        for (0..50) |third| _ = try worlds.run(world.run, worlds.first_seed() + turn, 3 * third);
    }
}

const rows = [_]handle_file.SegmentRow{ .{ .id = 2, .value = 5 }, .{ .id = 0, .value = 6 }, .{ .id = 1, .value = 7 } };
const built: live_room.Built = .{ .kind = .numbers };

/// Opens a reader between two operations of a first write, and does a first write between two operations of a reader.
const First = struct {
    allocator: std.mem.Allocator,
    disk: SimulatedDisk,
    /// Operations until the one between.
    left: u64 = 0,
    is_inside: bool = false,

    fn write(self: *First) !void {
        var handle: Handle = undefined;
        try handle.open(self.allocator, .{ .disk = &self.disk }, .{ .writable = true, .seed = 1 }, built);
        defer handle.close();
        for (rows) |row| {
            _ = try handle.live.delete(.{ .numbers = &.{row.id} }, null, &handle.diagnostic);
            try handle.live.checkpoint(&handle.diagnostic);
        }
    }

    fn read(self: *First) !void {
        var handle: Handle = undefined;
        // As the library does: the first write may have moved the files of the segment.
        handle.open(self.allocator, .{ .disk = &self.disk }, .{}, built) catch |err| switch (err) {
            error.SegmentLost, error.Unsupported => try handle.open(self.allocator, .{ .disk = &self.disk }, .{}, built),
            else => return err,
        };
        defer handle.close();
        _ = try handle.live.refresh(&handle.diagnostic);
        var moment = try live_room.Moment(SimulatedStore).take(self.allocator, &handle.store, &handle.diagnostic) orelse return;
        moment.release();
    }

    fn read_between(disk: *SimulatedDisk, _: *SimulatedStore, _: SimulatedDisk.Event) void {
        const self: *First = @fieldParentPtr("disk", disk);
        if (self.is_inside) return;
        self.is_inside = true;
        defer self.is_inside = false;
        self.read() catch |err| std.debug.panic("after {d} changes: {t}", .{ disk.changes, err });
    }

    fn write_between(disk: *SimulatedDisk, _: *SimulatedStore, _: SimulatedDisk.Event) void {
        const self: *First = @fieldParentPtr("disk", disk);
        self.left -|= 1;
        if (self.left > 0 or self.is_inside) return;
        self.is_inside = true; // once
        self.write() catch |err| std.debug.panic("{t}", .{err});
    }
};

test "a reader opens, refreshes and takes a moment at every step of a first write, and the other way round" {
    for (0..64) |at| {
        var one: First = .{ .allocator = std.testing.allocator, .disk = .init(at), .left = at };
        defer one.disk.deinit();
        var store: SimulatedStore = .{ .disk = &one.disk };
        try handle_file.build(one.allocator, &store, &rows);
        one.disk.on_event = if (at == 0) First.read_between else First.write_between;
        if (at == 0) try one.write() else try one.read();
    }
}

/// From then on the syncs of a folder that has a manifest fail.
fn fail_once_live(disk: *SimulatedDisk, _: *SimulatedStore, _: SimulatedDisk.Event) void {
    if (disk.names.contains(live_room.manifest.file_name)) disk.faults.sync = 1;
}

test "old names stay until the root is there for good, where the sync of its rename had failed" {
    const allocator = std.testing.allocator;
    for (0..15) |seed| for (0..8) |at| {
        errdefer std.debug.print("seed {d}, crash at change {d}\n", .{ seed, at });
        var disk: SimulatedDisk = .init(seed);
        defer disk.deinit();
        var store: SimulatedStore = .{ .disk = &disk };
        try handle_file.build(allocator, &store, &rows);
        var handle: Handle = undefined;
        {
            disk.on_event = fail_once_live;
            defer disk.on_event = null;
            try handle.open(allocator, .{ .disk = &disk }, .{ .writable = true, .seed = 1 }, built);
            defer handle.close();
            try std.testing.expectError(error.Io, handle.live.delete(.{ .numbers = &.{1} }, null, &handle.diagnostic));
            try std.testing.expect(handle.live.poisoned);
        }
        disk.faults = .{};
        disk.crash_at = disk.changes + at;
        if (handle.open(allocator, .{ .disk = &disk }, .{ .writable = true, .seed = 1 }, built)) handle.close() else |_| {}
        disk.crashed = true;
        try disk.restart();
        try handle.open(allocator, .{ .disk = &disk }, .{}, built);
        handle.close();
    };
}
