//! Rows that come, over a real folder: inserted, replaced, folded into segments, and read again.
const std = @import("std");
const folder = @import("folder.zig");
const find = @import("find.zig");
const wal_file = @import("wal.zig");
const rows_payload = @import("rows.zig");
const Commit = folder.Commit;
const Live = folder.Live(@import("store.zig").FolderStore);
const testing_folder = @import("testing.zig");
const World = testing_folder.World;
const Opened = testing_folder.Opened;
const allocator = std.testing.allocator;

test "rows come, are replaced and go; a reader sees them, and so does who opens it again" {
    for ([_]folder.Durability{ .sync, .interval, .process }) |durability| {
        var world = try World.init();
        defer world.deinit();
        var writer: Opened = undefined;
        try writer.open(&world, .{ .writable = true, .durability = durability }, &.{});
        var reader: Opened = undefined;
        try reader.open(&world, .{}, &.{});
        defer reader.close();
        const some = try writer.put(&.{ 5, 6, 7 }, 0, false, "first");
        try std.testing.expectEqual(3, some.rows);
        try std.testing.expectEqual(1, some.sequence);
        const again = try writer.put(&.{ 5, 6, 7 }, 0.5, false, "first");
        try std.testing.expectEqual(.repeated, again.outcome);
        try std.testing.expectEqual(1, again.sequence);
        const twice = try writer.put(&.{ 9, 6 }, 0, false, "");
        try std.testing.expectEqual(.duplicate, twice.outcome);
        try std.testing.expectEqual(1, twice.row);
        const replaced = try writer.put(&.{ 6, 8 }, 0.25, true, "");
        try std.testing.expectEqual(1, replaced.replaced);
        try std.testing.expectEqual(1, (try writer.live.delete(.{ .numbers = &.{ 5, 99 } }, null, &writer.diagnostic)).rows);
        _ = try writer.put(&.{5}, 0.75, false, "");
        try writer.expect_delta(&.{ 7, 6, 8, 5 }, &.{ 0, 0.25, 0.25, 0.75 });
        try std.testing.expectEqual(.something, try reader.live.refresh(&reader.diagnostic));
        try reader.expect_delta(&.{ 7, 6, 8, 5 }, &.{ 0, 0.25, 0.25, 0.75 });
        try writer.live.checkpoint(&writer.diagnostic);
        try writer.expect_delta(&.{ 7, 6, 8, 5 }, &.{ 0, 0.25, 0.25, 0.75 });
        _ = try writer.put(&.{7}, 0.125, true, "");
        try std.testing.expectEqual(.something, try reader.live.refresh(&reader.diagnostic));
        try reader.expect_delta(&.{ 6, 8, 5, 7 }, &.{ 0.25, 0.25, 0.75, 0.125 });
        writer.close(); // as a kill would
        for (0..2) |_| {
            try writer.open(&world, .{ .writable = true, .durability = durability }, &.{});
            try writer.expect_delta(&.{ 6, 8, 5, 7 }, &.{ 0.25, 0.25, 0.75, 0.125 });
            try std.testing.expectEqual(.repeated, (try writer.put(&.{1}, 0, false, "first")).outcome);
            try std.testing.expectEqual(5, writer.live.sequence);
            try writer.live.finish(&writer.diagnostic);
            writer.close();
        }
    }
}

test "a full delta refuses rows, and keeps its own unchanged" {
    var world = try World.init();
    defer world.deinit();
    var writer: Opened = undefined;
    try writer.open(&world, .{ .writable = true, .delta_bytes = 2000 }, &.{});
    defer writer.close();
    _ = try writer.put(&.{ 1, 2 }, 0, true, "");
    var outcome: folder.Outcome = .done;
    var id: i64 = 3;
    while (outcome == .done) : (id += 1) outcome = (try writer.put(&.{ 1, id }, 0.5, true, "")).outcome;
    try std.testing.expectEqual(.full, outcome);
    try std.testing.expect(writer.live.delta.bytes <= 2000);
    const before = writer.live.sequence;
    try std.testing.expectEqual(.full, (try writer.put(&.{ 1, 2 }, 0.75, true, "")).outcome);
    try std.testing.expectEqual(before, writer.live.sequence);
    try std.testing.expectEqual(1, (try writer.live.delete(.{ .numbers = &.{1} }, null, &writer.diagnostic)).rows);
}

test "damage in what was carried over is never a torn end" {
    var world = try World.init();
    defer world.deinit();
    var writer: Opened = undefined;
    try writer.open(&world, .{ .writable = true }, &.{});
    _ = try writer.put(&.{ 1, 2 }, 0, true, "");
    _ = try writer.put(&.{ 2, 3 }, 0, true, "");
    try writer.live.checkpoint(&writer.diagnostic);
    var buffer: [64]u8 = undefined;
    const name = try std.fmt.bufPrint(&buffer, "{s}", .{writer.live.wal_name.?});
    writer.close();
    const wal = try world.tmp.dir.openFile(name, .{ .mode = .read_write });
    defer wal.close();
    const size = try wal.getEndPos();
    var at: u64 = wal_file.header_bytes;
    while (at + wal_file.record_header_bytes < size) : (at += 24) {
        var byte: [1]u8 = undefined;
        _ = try wal.preadAll(&byte, at);
        try wal.pwriteAll(&.{byte[0] ^ 4}, at);
        try std.testing.expectError(error.Corrupt, writer.open(&world, .{}, &.{}));
        try wal.pwriteAll(&byte, at);
    }
    try writer.open(&world, .{}, &.{});
    writer.close();
}

test "a fold makes a part of rows and parts; what changed meanwhile is dead in it, or stays behind" {
    var world = try World.init();
    defer world.deinit();
    var writer: Opened = undefined;
    try writer.open(&world, .{ .writable = true }, &.{});
    _ = try writer.put(&.{ 1, 2, 3, 4 }, 0, false, "r");
    _ = try writer.put(&.{ 4, 5 }, 0.5, true, "");
    const view = try writer.live.take_view();
    var name: [32]u8 = undefined;
    const path = try writer.live.next_segment(&name, &writer.diagnostic);
    const ids = [_]i64{ 5, 1, 3, 2, 4 }; // in the order in which a build may place them
    // Meanwhile:
    _ = try writer.live.delete(.{ .numbers = &.{2} }, null, &writer.diagnostic);
    _ = try writer.put(&.{ 3, 6 }, 0.25, true, "");
    const what: Commit = .{ .view = view, .segments = &.{}, .taken = &.{}, .with_delta = true, .segment = .{ .path = path, .uuid = "u1", .ids = .{ .numbers = &ids } } };
    const before = writer.live.sequence;
    try std.testing.expectEqual(.done, (try writer.live.commit(what, &writer.diagnostic)).outcome);
    try std.testing.expectEqual(.stale, (try writer.live.commit(what, &writer.diagnostic)).outcome);
    view.release();
    try writer.expect_delta(&.{ 3, 6 }, &.{ 0.25, 0.25 });
    const after = try writer.live.take_view();
    try std.testing.expectEqual(1, after.segments.len);
    try std.testing.expectEqual(2, after.segments[0].deleted.?.count()); // 2 and 3
    try std.testing.expect(after.segments[0].deleted.?.contains(3) and after.segments[0].deleted.?.contains(2));
    try std.testing.expectEqual(before, writer.live.sequence);
    try std.testing.expectEqual(.duplicate, (try writer.put(&.{5}, 0, false, "")).outcome);
    try std.testing.expectEqual(.repeated, (try writer.put(&.{5}, 0, false, "r")).outcome);
    _ = try writer.put(&.{5}, 0.75, true, "");
    writer.close();
    try writer.open(&world, .{ .writable = true }, &.{.{ .numbers = &ids }});
    try writer.expect_delta(&.{ 3, 6, 5 }, &.{ 0.25, 0.25, 0.75 });
    after.release();

    // Segment and delta become one segment; one row of the view is deleted meanwhile.
    const all = try writer.live.take_view();
    defer all.release();
    try std.testing.expectEqual(3, all.segments[0].deleted.?.count());
    var second_name: [32]u8 = undefined;
    const second = try writer.live.next_segment(&second_name, &writer.diagnostic);
    const merged = [_]i64{ 6, 4, 3, 1, 5 };
    _ = try writer.live.delete(.{ .numbers = &.{ 1, 6 } }, null, &writer.diagnostic);
    const merge: Commit = .{ .view = all, .segments = &.{0}, .taken = &.{0b10010}, .with_delta = true, .segment = .{ .path = second, .uuid = "u2", .ids = .{ .numbers = &merged } } };
    try std.testing.expectEqual(.done, (try writer.live.commit(merge, &writer.diagnostic)).outcome);
    try writer.expect_delta(&.{}, &.{});
    try std.testing.expectEqual(1, writer.live.segments.items.len);
    try std.testing.expectEqual(2, writer.live.segments.items[0].deleted_count);
    try std.testing.expectError(error.FileNotFound, world.tmp.dir.access(path, .{}));
    // All of it dies, and no segment is left.
    _ = try writer.live.delete(.{ .numbers = &.{ 3, 4, 5 } }, null, &writer.diagnostic);
    const nothing = try writer.live.take_view();
    defer nothing.release();
    _ = try writer.live.commit(.{ .view = nothing, .segments = &.{0}, .taken = &.{0}, .with_delta = true, .segment = null }, &writer.diagnostic);
    writer.close();
    try writer.open(&world, .{ .writable = true }, &.{});
    defer writer.close();
    try std.testing.expectEqual(0, writer.live.segments.items.len);
    _ = try writer.put(&.{1}, 0, false, "");
}

test "a fold of parts and one of the delta go on together; two of the same sources do not" {
    var world = try World.init();
    defer world.deinit();
    var writer: Opened = undefined;
    try writer.open(&world, .{ .writable = true }, &.{});
    defer writer.close();
    const first = [_]i64{ 2, 1, 3 };
    const second = [_]i64{ 4, 5, 6 };
    const merged = [_]i64{ 3, 2, 1 };
    var names: [3][32]u8 = undefined;
    var paths: [3][]const u8 = undefined;
    for (&paths, &names) |*path, *name| {
        path.* = try writer.live.next_segment(name, &writer.diagnostic); // held: another's manifest does not take it away
    }
    _ = try writer.put(&first, 0, false, "");
    {
        const view = try writer.live.take_view();
        defer view.release();
        const commit: Commit = .{ .view = view, .segments = &.{}, .taken = &.{}, .with_delta = true, .segment = .{ .path = paths[0], .uuid = "u1", .ids = .{ .numbers = &first } } };
        try std.testing.expectEqual(.done, (try writer.live.commit(commit, &writer.diagnostic)).outcome);
    }
    _ = try writer.put(&second, 0.5, false, "");
    const view = try writer.live.take_view(); // of both
    defer view.release();
    _ = try writer.live.delete(.{ .numbers = &.{ 1, 5 } }, null, &writer.diagnostic);
    const of_delta: Commit = .{ .view = view, .segments = &.{}, .taken = &.{}, .with_delta = true, .segment = .{ .path = paths[1], .uuid = "u2", .ids = .{ .numbers = &second } } };
    const of_segments: Commit = .{ .view = view, .segments = &.{0}, .taken = &.{0b111}, .with_delta = false, .segment = .{ .path = paths[2], .uuid = "u3", .ids = .{ .numbers = &merged } } };
    try std.testing.expectEqual(.done, (try writer.live.commit(of_delta, &writer.diagnostic)).outcome);
    _ = try writer.live.delete(.{ .numbers = &.{3} }, null, &writer.diagnostic);
    try std.testing.expectEqual(.done, (try writer.live.commit(of_segments, &writer.diagnostic)).outcome);
    for ([_]Commit{ of_delta, of_segments }) |again|
        try std.testing.expectEqual(.stale, (try writer.live.commit(again, &writer.diagnostic)).outcome);
    const after = try writer.live.take_view();
    defer after.release();
    try std.testing.expectEqual(2, after.segments.len);
    try std.testing.expectEqualStrings(paths[2], writer.live.segments.items[0].path); // in the order of their age
    try std.testing.expectEqual(2, after.segments[0].deleted.?.count());
    try std.testing.expect(after.segments[0].deleted.?.contains(0) and after.segments[0].deleted.?.contains(2)); // 3 and 1
    try std.testing.expectEqual(1, after.segments[1].deleted.?.count());
    try std.testing.expect(after.segments[1].deleted.?.contains(1)); // 5
    try writer.expect_delta(&.{}, &.{});
}

test "numbers of rows are never given twice; a call of another kind is refused" {
    var world = try World.init();
    defer world.deinit();
    var writer: Opened = undefined;
    for (0..3) |turn| {
        try writer.open(&world, .{ .writable = true }, &.{});
        defer writer.close();
        const given: rows_payload.Rows = .{ .count = 2, .kind = .row, .ids = .{ .numbers = &.{} }, .vectors = &@as([8]u8, @splat(0)) };
        try std.testing.expectEqual(2 * turn, (try writer.live.insert(given, null, &writer.diagnostic)).row);
        _ = try writer.live.delete(.{ .numbers = &.{@intCast(2 * turn + 1)} }, null, &writer.diagnostic);
        if (turn == 1) try writer.live.checkpoint(&writer.diagnostic);
        try std.testing.expectError(error.InvalidArgument, writer.put(&.{1}, 0, true, ""));
        const text: find.Ids = .{ .strings = .{ .offsets = &.{ 0, 1 }, .bytes = "a" } };
        try std.testing.expectError(error.InvalidArgument, writer.live.delete(text, null, &writer.diagnostic));
        const one: rows_payload.Rows = .{ .count = 1, .kind = .row, .is_upsert = true, .ids = .{ .numbers = &.{0} }, .vectors = &@as([4]u8, @splat(0)) };
        try std.testing.expectEqual(1, (try writer.live.insert(one, null, &writer.diagnostic)).replaced);
        var other = one;
        other.ids = .{ .numbers = &.{77} };
        try std.testing.expectEqual(.no_row_number, (try writer.live.insert(other, null, &writer.diagnostic)).outcome);
    }
}

test "threads that take views beside writers, checkpoints and folds see whole calls, and none goes back" {
    var world = try World.init();
    defer world.deinit();
    for ([_]folder.Durability{ .sync, .process }) |durability| {
        var writer: Opened = undefined;
        try writer.open(&world, .{ .writable = true, .durability = durability, .checkpoint_bytes = 600 }, &.{});
        defer writer.close();
        const Looker = struct {
            fn look(live: *Live, stop: *std.atomic.Value(bool), failed: *std.atomic.Value(bool)) void {
                var sequence: u64 = 0;
                while (!stop.load(.acquire)) {
                    const view = live.take_view() catch return failed.store(true, .release);
                    defer view.release();
                    // Each call brings two rows, or takes the two away that one brought.
                    if (view.rows % 2 != 0 or view.deleted.count() % 2 != 0 or view.sequence < sequence) failed.store(true, .release);
                    sequence = view.sequence;
                }
            }
        };
        var failed: std.atomic.Value(bool) = .init(false);
        var stop: std.atomic.Value(bool) = .init(false);
        var threads: [2]std.Thread = undefined;
        for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, Looker.look, .{ &writer.live, &stop, &failed });
        for (0..120) |i| {
            const first: i64 = @intCast(2 * i);
            _ = try writer.put(&.{ first, first + 1 }, 0, true, "");
            if (i % 3 == 0) _ = try writer.live.delete(.{ .numbers = &.{ first, first + 1 } }, null, &writer.diagnostic);
            if (i % 40 != 39) continue;
            const view = try writer.live.take_view();
            defer view.release();
            for (0..view.rows) |row| if (!view.deleted.contains(row)) {
                const place = view.delta.place_of(@intCast(row));
                _ = try writer.live.delete(.{ .numbers = place.record.rows.ids.numbers }, null, &writer.diagnostic);
            };
            // Nothing lives: the delta goes, and no segment takes its place.
            const done = try writer.live.commit(.{ .view = view, .segments = &.{}, .taken = &.{}, .with_delta = true, .segment = null }, &writer.diagnostic);
            try std.testing.expectEqual(.done, done.outcome);
        }
        stop.store(true, .release);
        for (threads) |thread| thread.join();
        try std.testing.expect(!failed.load(.acquire));
    }
}
