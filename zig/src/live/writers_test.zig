//! Several writers of one folder, each with a handle of its own, as processes have: what one wrote the others find, and show.
const std = @import("std");
const folder = @import("folder.zig");
const find = @import("find.zig");
const page_file = @import("page.zig");
const rows_file = @import("rows.zig");
const wal_file = @import("wal.zig");
const Commit = folder.Commit;
const testing_folder = @import("testing.zig");
const World = testing_folder.World;
const Handle = testing_folder.Opened;
const allocator = std.testing.allocator;

/// The record of a call whose writer was killed before it told anybody.
fn append_unpublished(handle: *Handle, id: i64) !void {
    const bytes = try rows_file.encode(allocator, .{ .kind = .numbers, .ids = .{ .numbers = &.{id} }, .vectors = &@as([4]u8, @splat(0)) }, 1);
    defer allocator.free(bytes);
    var position = handle.live.position;
    wal_file.seal(bytes, .rows, 1, 0, &position);
    try handle.store.write(handle.live.wal.?, bytes, handle.live.position.offset);
}

test "two writers find and show each other's rows; readers do, too" {
    for ([_]folder.Durability{ .sync, .interval, .process }) |durability| {
        var world = try World.init();
        defer world.deinit();
        var a: Handle = undefined;
        var b: Handle = undefined;
        var reader: Handle = undefined;
        try a.open(&world, .{ .writable = true, .durability = durability }, &.{});
        defer a.close();
        try b.open(&world, .{ .writable = true, .durability = durability }, &.{});
        defer b.close();
        try reader.open(&world, .{}, &.{});
        defer reader.close();
        const changes = &reader.live.page.?.changes;
        const before = changes.load(.acquire);
        _ = try a.put(&.{ 1, 2, 3 }, 0, false, "");
        try std.testing.expect(changes.load(.acquire) != before);
        try std.testing.expectEqual(.duplicate, (try b.put(&.{ 4, 2 }, 0, false, "")).outcome);
        const replaced = try b.put(&.{ 2, 4 }, 0, true, "");
        try std.testing.expectEqual(1, replaced.replaced);
        try std.testing.expectEqual(2, replaced.sequence);
        try std.testing.expectEqual(durability == .sync, replaced.durable);
        try std.testing.expectEqual(1, (try a.delete(&.{ 4, 9 })).rows);
        try std.testing.expectEqual(0, (try b.delete(&.{4})).rows);
        for ([_]*Handle{ &a, &b, &reader }) |one| try one.expect_rows(&.{ 1, 3, 2 });
        const seen = changes.load(.acquire);
        try std.testing.expectEqual(.nothing, try reader.live.refresh(&reader.diagnostic));
        try std.testing.expectEqual(.nothing, try a.live.refresh(&a.diagnostic));
        try std.testing.expectEqual(seen, changes.load(.acquire));
    }
}

test "what waits for a sync is seen by none, and what another writer does not sync waits behind it" {
    var world = try World.init();
    defer world.deinit();
    var a: Handle = undefined;
    var b: Handle = undefined;
    var reader: Handle = undefined;
    try a.writer(&world);
    defer a.close();
    try b.open(&world, .{ .writable = true, .durability = .process }, &.{});
    defer b.close();
    try reader.open(&world, .{}, &.{});
    defer reader.close();
    _ = try a.put(&.{1}, 0, false, "");
    // A call of `a` as it is before its sync.
    try append_unpublished(&a, 2);
    a.live.page.?.append(2, true);
    for ([_]*Handle{ &b, &reader }) |one| try one.expect_rows(&.{1});
    try std.testing.expectEqual(.duplicate, (try b.put(&.{2}, 0, false, "")).outcome);
    for ([_]*Handle{ &b, &reader }) |one| try one.expect_rows(&.{1});
    try std.testing.expect((try b.put(&.{3}, 0, false, "")).durable); // it had to sync both
    for ([_]*Handle{ &a, &b, &reader }) |one| try one.expect_rows(&.{ 1, 2, 3 });
}

test "a writer goes on behind one that was killed: in the middle of a record, and before it told of one" {
    var world = try World.init();
    defer world.deinit();
    var a: Handle = undefined;
    var b: Handle = undefined;
    try a.writer(&world);
    try b.writer(&world);
    defer b.close();
    _ = try a.put(&.{1}, 0, false, "");
    try a.store.write(a.live.wal.?, "half a record", a.live.position.offset);
    a.close();
    _ = try b.put(&.{2}, 0, false, "");
    try b.expect_rows(&.{ 1, 2 });
    var names: std.ArrayList(u8) = .empty;
    defer names.deinit(allocator);
    try names.print(allocator, "{s}.torn", .{b.live.wal_name.?});
    var buffer: [64]u8 = undefined;
    try std.testing.expectEqualStrings("half a record", try world.tmp.dir.readFile(names.items, &buffer));

    try a.writer(&world);
    defer a.close();
    try a.expect_rows(&.{ 1, 2 });
    try append_unpublished(&a, 3);
    try a.expect_rows(&.{ 1, 2 });
    try std.testing.expectEqual(4, (try b.put(&.{4}, 0, false, "")).sequence);
    for ([_]*Handle{ &a, &b }) |one| try one.expect_rows(&.{ 1, 2, 3, 4 });
}

test "a writer that was killed between its manifest and the end of the former log is noticed" {
    var world = try World.init();
    defer world.deinit();
    var a: Handle = undefined;
    var b: Handle = undefined;
    try a.writer(&world);
    try b.writer(&world);
    defer b.close();
    _ = try a.put(&.{ 1, 2 }, 0, false, "");
    try b.expect_rows(&.{ 1, 2 });
    const log = try allocator.dupe(u8, a.live.wal_name.?);
    defer allocator.free(log);
    const manifest = b.live.page.?.generation.load(.acquire);
    try world.tmp.dir.rename(log, "kept");
    std.posix.linkat(world.tmp.dir.fd, "kept", world.tmp.dir.fd, log, 0) catch unreachable;
    _ = try a.live.checkpoint(&a.diagnostic);
    b.live.page.?.generation.store(manifest, .release);
    a.close();
    try std.testing.expect((try b.store.stat(b.live.wal.?)).is_linked);
    try std.testing.expectEqual(1, (try b.put(&.{ 2, 3 }, 0, true, "")).replaced);
    try b.expect_rows(&.{ 1, 2, 3 });
    try std.testing.expectEqual(b.live.generation, b.live.page.?.generation.load(.acquire));
    try std.testing.expect(b.live.generation > manifest + 1); // written anew: the rename may not have been on the device
}

test "checkpoints of another writer keep rows and their order; its commits move" {
    var world = try World.init();
    defer world.deinit();
    var a: Handle = undefined;
    var b: Handle = undefined;
    var reader: Handle = undefined;
    try a.writer(&world);
    defer a.close();
    try b.writer(&world);
    try reader.open(&world, .{}, &.{});
    defer reader.close();
    _ = try a.put(&.{ 1, 2, 3 }, 0, false, "");
    _ = try b.put(&.{ 2, 4 }, 0, true, "");
    const view = try a.live.take_view();
    defer view.release();
    try b.live.checkpoint(&b.diagnostic);
    _ = try b.delete(&.{1});
    for ([_]*Handle{ &a, &b, &reader }) |one| try one.expect_rows(&.{ 3, 2, 4 });
    _ = try a.put(&.{5}, 0, false, "");
    try b.expect_rows(&.{ 3, 2, 4, 5 });

    // The view of before b's checkpoint still stands for a's rows; what changed since is dead in the segment, or stays behind.
    var buffer: [32]u8 = undefined;
    const path = try a.live.next_segment(&buffer, &a.diagnostic);
    const other = Commit{ .view = view, .segments = &.{}, .taken = &.{}, .with_delta = true, .segment = null };
    try b.live.sweep(&b.diagnostic); // leaves the folder that a holds
    try world.tmp.dir.access(path, .{});
    const ids = [_]i64{ 3, 1, 2 };
    const what: Commit = .{ .view = view, .segments = &.{}, .taken = &.{}, .with_delta = true, .segment = .{ .path = path, .uuid = "u1", .ids = .{ .numbers = &ids } } };
    try std.testing.expectEqual(.done, (try a.live.commit(what, &a.diagnostic)).outcome);
    try std.testing.expectEqual(0, a.live.held.items.len);
    for ([_]*Handle{ &b, &reader }) |one| try std.testing.expectEqual(.moved, try one.live.refresh(&one.diagnostic));
    for (0..2) |_| {
        try std.testing.expectEqual(.moved, (try b.put(&.{6}, 0, false, "")).outcome);
        try std.testing.expectEqual(.moved, (try b.live.commit(other, &b.diagnostic)).outcome);
    }
    var later: [32]u8 = undefined;
    try std.testing.expect(!std.mem.eql(u8, path, try b.live.next_segment(&later, &b.diagnostic)));
    b.close();
    try b.open(&world, .{ .writable = true }, &.{.{ .numbers = &ids }});
    defer b.close();
    try std.testing.expectEqual(.stale, (try b.live.commit(other, &b.diagnostic)).outcome);
    try std.testing.expectEqual(.duplicate, (try b.put(&.{3}, 0, false, "")).outcome);
    try std.testing.expectEqual(1, (try b.put(&.{ 2, 6 }, 0, true, "")).replaced);
    try a.expect_rows(&.{ 4, 5, 2, 6 });
    try std.testing.expectEqual(2, b.live.segments.items[0].deleted_count); // 1 and 2
}

test "numbers that one writer reserved are no rows for the others, nor given again" {
    var world = try World.init();
    defer world.deinit();
    var a: Handle = undefined;
    var b: Handle = undefined;
    try a.writer(&world);
    defer a.close();
    try b.writer(&world);
    defer b.close();
    const two: rows_file.Rows = .{ .count = 2, .kind = .row, .ids = .{ .numbers = &.{} }, .vectors = &@as([8]u8, @splat(0)) };
    try std.testing.expectEqual(0, (try a.live.insert(two, null, &a.diagnostic)).row);
    const large: rows_file.Rows = .{ .count = 3, .kind = .row, .ids = .{ .numbers = &.{} }, .vectors = "" };
    try std.testing.expectEqual(2, (try a.live.reserve(large, null, &a.diagnostic)).row);
    var upsert: rows_file.Rows = .{ .count = 1, .kind = .row, .is_upsert = true, .ids = .{ .numbers = &.{3} }, .vectors = &@as([4]u8, @splat(0)) };
    for ([_]*Handle{ &a, &b }) |one| try std.testing.expectEqual(.no_row_number, (try one.live.insert(upsert, null, &one.diagnostic)).outcome);
    try b.live.checkpoint(&b.diagnostic); // carries it over
    try std.testing.expectEqual(.no_row_number, (try b.live.insert(upsert, null, &b.diagnostic)).outcome);
    try std.testing.expectEqual(5, (try b.live.insert(two, null, &b.diagnostic)).row);
    var buffer: [32]u8 = undefined;
    const path = try a.live.next_segment(&buffer, &a.diagnostic);
    const ids = [_]i64{ 4, 2, 3 };
    const done = try a.live.insert_segment(.{ .rows = large, .first = 2, .path = path, .uuid = "u", .ids = .{ .numbers = &ids } }, null, &a.diagnostic);
    try std.testing.expectEqual(.done, done.outcome);
    try std.testing.expectEqual(1, (try a.live.insert(upsert, null, &a.diagnostic)).replaced);
    b.close();
    try b.open(&world, .{ .writable = true }, &.{.{ .numbers = &ids }});
    upsert.ids = .{ .numbers = &.{4} };
    try std.testing.expectEqual(1, (try b.live.insert(upsert, null, &b.diagnostic)).replaced);
    try std.testing.expectEqual(7, (try b.live.insert(two, null, &b.diagnostic)).row);
}

test "a deleted page is made again, and readers find it" {
    var world = try World.init();
    defer world.deinit();
    var a: Handle = undefined;
    var b: Handle = undefined;
    var reader: Handle = undefined;
    try a.writer(&world);
    defer a.close();
    try b.writer(&world);
    defer b.close();
    try reader.open(&world, .{}, &.{});
    defer reader.close();
    _ = try a.put(&.{1}, 0, false, "");
    for (0..3) |turn| {
        try world.tmp.dir.deleteFile(page_file.file_name);
        for ([_]*Handle{ &a, &b, &reader }) |one| one.store.looked_us = 0;
        const id: i64 = @intCast(10 * turn + 2);
        if (turn < 2) {
            _ = try a.put(&.{id}, 0, false, "");
            _ = try b.put(&.{id + 1}, 0, false, "");
        } else { // one that only searches makes it, too
            _ = try b.live.refresh(&b.diagnostic);
            _ = try a.put(&.{id}, 0, false, "");
            _ = try a.put(&.{id + 1}, 0, false, "");
        }
        try world.tmp.dir.access(page_file.file_name, .{});
        for ([_]*Handle{ &a, &b, &reader }) |one| {
            const rows = [_]i64{ 1, 2, 3, 12, 13, 22, 23 };
            try one.expect_rows(rows[0 .. 2 * turn + 3]);
            try std.testing.expectEqual(a.live.generation, one.live.page.?.generation.load(.acquire));
        }
    }
}

test "a call gives up when the lock is not free in time, and searches go on" {
    var world = try World.init();
    defer world.deinit();
    var a: Handle = undefined;
    var b: Handle = undefined;
    try a.writer(&world);
    defer a.close();
    try b.open(&world, .{ .writable = true, .timeout_ns = 20 * std.time.ns_per_ms }, &.{});
    defer b.close();
    _ = try a.put(&.{1}, 0, false, "");
    try std.testing.expect(try a.store.lock(0));
    try std.testing.expectError(error.Busy, b.put(&.{2}, 0, false, ""));
    var text: [64]u8 = undefined;
    try std.testing.expectEqualStrings(try std.fmt.bufPrint(&text, "process {d} writes to this index", .{a.store.process}), b.diagnostic.message());
    try b.expect_rows(&.{1});
    try b.live.sync(&b.diagnostic);
    a.store.unlock();
    _ = try b.put(&.{2}, 0, false, "");
    try b.live.finish(&b.diagnostic);
    try a.expect_rows(&.{ 1, 2 });
}

test "the last writer that closes leaves a log that says it is whole; reservations of the dead are gone" {
    var world = try World.init();
    defer world.deinit();
    var a: Handle = undefined;
    var b: Handle = undefined;
    try a.writer(&world);
    try b.writer(&world);
    _ = try a.put(&.{1}, 0, false, "");
    _ = try b.put(&.{2}, 0, false, "");
    try a.live.finish(&a.diagnostic);
    a.close();
    _ = try b.put(&.{3}, 0, false, "");
    try b.live.finish(&b.diagnostic);
    try std.testing.expect(b.live.last_is_promise and b.live.position.promise == b.live.position.offset - wal_file.record_header_bytes);
    b.close();
    try a.writer(&world);
    defer a.close();
    try a.expect_rows(&.{ 1, 2, 3 });
}

test "writers in many threads and handles lose nothing, and every search that begins after a call sees it" {
    var world = try World.init();
    defer world.deinit();
    const Worker = struct {
        fn work(world_: *const World, number: usize, failed: *std.atomic.Value(bool)) void {
            write(world_, number) catch |err| {
                std.debug.print("writer {d}: {t}\n", .{ number, err });
                failed.store(true, .release);
            };
        }

        fn write(world_: *const World, number: usize) !void {
            var handle: Handle = undefined;
            try handle.open(world_, .{ .writable = true, .durability = @enumFromInt(number % 3), .checkpoint_bytes = 3000 }, &.{});
            defer handle.close();
            for (0..40) |i| {
                const id: i64 = @intCast(100 * number + i);
                const done = try handle.put(&.{ id, id + 50 }, 0, false, "");
                if (done.rows != 2) return error.NotDone;
                if (i % 4 == 3 and (try handle.delete(&.{id})).rows != 1) return error.NotDeleted;
                _ = try handle.live.refresh(&handle.diagnostic);
                const view = try handle.live.take_view();
                defer view.release();
                if (view.sequence < done.sequence) return error.NotSeen;
            }
            try handle.live.finish(&handle.diagnostic);
        }
    };
    var failed: std.atomic.Value(bool) = .init(false);
    var threads: [4]std.Thread = undefined;
    for (&threads, 0..) |*thread, i| thread.* = try std.Thread.spawn(.{}, Worker.work, .{ &world, i, &failed });
    for (threads) |thread| thread.join();
    try std.testing.expect(!failed.load(.acquire));
    var reader: Handle = undefined;
    try reader.open(&world, .{}, &.{});
    defer reader.close();
    try std.testing.expectEqual(4 * (40 + 10), reader.live.sequence);
    const view = try reader.live.take_view();
    defer view.release();
    try std.testing.expectEqual(4 * 70, view.rows - view.deleted.count());
}
