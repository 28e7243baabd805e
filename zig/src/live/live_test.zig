//! The live room over a real folder, with real threads.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const FolderStore = @import("store.zig").FolderStore;
const folder = @import("folder.zig");
const Row = @import("delta.zig").Row;
const find = @import("find.zig");
const wal_file = @import("wal.zig");
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const BitSet = base.BitSet;
const Live = folder.Live(FolderStore);

const n = 1000;

const World = struct {
    tmp: std.testing.TmpDir,
    path: []u8,
    numbers: [n]i64,

    fn init() !World {
        var self: World = .{ .tmp = std.testing.tmpDir(.{ .iterate = true }), .path = undefined, .numbers = undefined };
        self.path = try self.tmp.dir.realpathAlloc(std.testing.allocator, ".");
        for (&self.numbers, 0..) |*number, i| number.* = @intCast(i + 100);
        const manifest = layout.manifest.example(n, &.{.{ .name = "codes.bin", .bytes = 5, .checksum = "00" }});
        const text = try layout.manifest.write(std.testing.allocator, &manifest);
        defer std.testing.allocator.free(text);
        try self.tmp.dir.writeFile(.{ .sub_path = "manifest.json", .data = text });
        try self.tmp.dir.writeFile(.{ .sub_path = "codes.bin", .data = "codes" });
        return self;
    }

    fn deinit(self: *World) void {
        std.testing.allocator.free(self.path);
        self.tmp.cleanup();
    }
};

/// A handle with its store.
const Opened = struct {
    store: FolderStore,
    live: Live,
    diagnostic: Diagnostic = .{},

    fn open(self: *Opened, world: *World, options: folder.Options) !void {
        self.diagnostic = .{};
        self.store = try .open(world.path);
        errdefer self.store.deinit();
        self.live = try .open(std.testing.allocator, &self.store, options, &self.diagnostic);
        errdefer self.live.deinit();
        try self.live.attach(0, .{ .numbers = &world.numbers }, &self.diagnostic);
        try self.live.begin(.{ .kind = .numbers }, &self.diagnostic);
    }

    fn close(self: *Opened) void {
        self.live.deinit();
        self.store.deinit();
    }

    fn expect_deleted(self: *Opened, vertices: []const u32) !void {
        var set = try BitSet.init(std.testing.allocator, n);
        defer set.deinit(std.testing.allocator);
        try std.testing.expectEqual(vertices.len > 0, self.live.copy_deleted(0, &set));
        try std.testing.expectEqual(vertices.len, set.count());
        for (vertices) |vertex| try std.testing.expect(set.contains(vertex));
    }
};

fn delete_vertices(live: *Live, vertices: []const u32, diagnostic: *Diagnostic) !folder.Done {
    var rows: [8]Row = undefined;
    for (vertices, rows[0..vertices.len]) |vertex, *row| row.* = .{ .segment = 0, .vertex = vertex };
    return live.delete_rows(live.layout, rows[0..vertices.len], null, diagnostic);
}

test "an index becomes live with its first delete; readers see it when they refresh" {
    var world = try World.init();
    defer world.deinit();
    var reader: Opened = undefined;
    try reader.open(&world, .{});
    defer reader.close();
    var writer: Opened = undefined;
    try writer.open(&world, .{ .writable = true });
    const none = try writer.live.delete(.{ .numbers = &.{ 1, 2 } }, null, &writer.diagnostic);
    try std.testing.expectEqual(0, none.rows);
    try std.testing.expectError(error.FileNotFound, world.tmp.dir.access("live.json", .{}));
    const some = try writer.live.delete(.{ .numbers = &.{ 100, 1, 105, 100 } }, null, &writer.diagnostic);
    const info = writer.live.info();
    try std.testing.expectEqual(folder.Done{
        .rows = 2,
        .sequence = 1,
        .durable = true,
        .layout = info.layout,
        .row_count = info.rows + info.delta_rows,
        .delta_bytes = info.delta_bytes,
        .delta_bytes_max = info.delta_bytes_max,
    }, some);
    try std.testing.expectError(error.FileNotFound, world.tmp.dir.access("manifest.json", .{}));
    try world.tmp.dir.access("part-0000000000000001/manifest.json", .{});
    try std.testing.expectError(error.FileNotFound, world.tmp.dir.access("codes.bin", .{}));
    try reader.expect_deleted(&.{});
    try std.testing.expectEqual(.something, try reader.live.refresh(&reader.diagnostic));
    try reader.expect_deleted(&.{ 0, 5 });
    try std.testing.expectEqual(.nothing, try reader.live.refresh(&reader.diagnostic));
    _ = try delete_vertices(&writer.live, &.{ 5, 6, 7 }, &writer.diagnostic);
    try writer.live.checkpoint(&writer.diagnostic);
    _ = try delete_vertices(&writer.live, &.{8}, &writer.diagnostic);
    try std.testing.expectEqual(.something, try reader.live.refresh(&reader.diagnostic));
    try reader.expect_deleted(&.{ 0, 5, 6, 7, 8 });
    try std.testing.expectError(error.Unsupported, reader.live.delete(.{ .numbers = &.{100} }, null, &reader.diagnostic));
    const text: find.Ids = .{ .strings = .{ .offsets = &.{ 0, 1 }, .bytes = "a" } };
    try std.testing.expectError(error.InvalidArgument, writer.live.delete(text, null, &writer.diagnostic));
    try writer.live.finish(&writer.diagnostic);
    writer.close();

    try writer.open(&world, .{ .writable = true });
    defer writer.close();
    try writer.expect_deleted(&.{ 0, 5, 6, 7, 8 });
    try std.testing.expectEqual(3, writer.live.info().sequence);
    try std.testing.expectEqual(0, (try writer.live.delete(.{ .numbers = &.{105} }, null, &writer.diagnostic)).rows);
}

test "a torn end is put aside; damage below a promise is refused, by readers and by writers" {
    var world = try World.init();
    defer world.deinit();
    var writer: Opened = undefined;
    try writer.open(&world, .{ .writable = true });
    for (0..4) |i| _ = try delete_vertices(&writer.live, &.{@intCast(i)}, &writer.diagnostic);
    const name = try std.testing.allocator.dupe(u8, writer.live.wal_name.?);
    defer std.testing.allocator.free(name);
    writer.close();
    {
        const wal = try world.tmp.dir.openFile(name, .{ .mode = .read_write });
        defer wal.close();
        const end = try wal.getEndPos();
        try wal.pwriteAll("half a record", end);
    }
    var reader: Opened = undefined;
    try reader.open(&world, .{});
    try reader.expect_deleted(&.{ 0, 1, 2, 3 });
    reader.close();
    try writer.open(&world, .{ .writable = true });
    try writer.expect_deleted(&.{ 0, 1, 2, 3 });
    const torn = try std.fmt.allocPrint(std.testing.allocator, "{s}.torn", .{name});
    defer std.testing.allocator.free(torn);
    var buffer: [64]u8 = undefined;
    try std.testing.expectEqualStrings("half a record", try world.tmp.dir.readFile(torn, &buffer));

    for (4..8) |i| _ = try delete_vertices(&writer.live, &.{@intCast(i)}, &writer.diagnostic);
    const second = try std.testing.allocator.dupe(u8, writer.live.wal_name.?);
    defer std.testing.allocator.free(second);
    writer.close();
    const wal = try world.tmp.dir.openFile(second, .{ .mode = .read_write });
    defer wal.close();
    try wal.pwriteAll("x", wal_file.header_bytes + 70);
    try std.testing.expectError(error.Corrupt, writer.open(&world, .{ .writable = true }));
    try std.testing.expectError(error.Corrupt, reader.open(&world, .{}));
    try std.testing.expectEqualStrings(second, reader.diagnostic.file());
}

test "callers in many threads, one sync for several; a reader that refreshes meanwhile never sees half a call" {
    var world = try World.init();
    defer world.deinit();
    var writer: Opened = undefined;
    try writer.open(&world, .{ .writable = true, .checkpoint_bytes = 2000 });
    defer writer.close();
    const Caller = struct {
        fn write(opened: *Opened, first: u32, failed: *std.atomic.Value(bool)) void {
            var diagnostic: Diagnostic = .{};
            for (0..40) |i| {
                const vertex: u32 = first + 2 * @as(u32, @intCast(i));
                const done = delete_vertices(&opened.live, &.{ vertex, vertex + 1 }, &diagnostic) catch {
                    failed.store(true, .release);
                    return;
                };
                if (done.rows != 2 or !done.durable) failed.store(true, .release);
            }
        }

        fn read(world_: *World, stop: *std.atomic.Value(bool), failed: *std.atomic.Value(bool)) void {
            look(world_, stop) catch |err| {
                std.debug.print("reader: {t}\n", .{err});
                failed.store(true, .release);
            };
        }

        fn look(world_: *World, stop: *std.atomic.Value(bool)) !void {
            var reader: Opened = undefined;
            try reader.open(world_, .{});
            defer reader.close();
            var set = try BitSet.init(std.testing.allocator, n);
            defer set.deinit(std.testing.allocator);
            var last: usize = 0;
            while (!stop.load(.acquire)) {
                _ = reader.live.refresh(&reader.diagnostic) catch |err| {
                    std.debug.print("{s}\n", .{reader.diagnostic.message()});
                    return err;
                };
                set.clear();
                _ = reader.live.copy_deleted(0, &set);
                for (0..n / 2) |i| if (set.contains(2 * i) != set.contains(2 * i + 1)) return error.HalfACall;
                if (set.count() < last) return error.Lost;
                last = set.count();
            }
        }
    };
    var failed: std.atomic.Value(bool) = .init(false);
    var stop: std.atomic.Value(bool) = .init(false);
    const watcher = try std.Thread.spawn(.{}, Caller.read, .{ &world, &stop, &failed });
    var threads: [4]std.Thread = undefined;
    for (&threads, 0..) |*thread, i| thread.* = try std.Thread.spawn(.{}, Caller.write, .{ &writer, @as(u32, @intCast(100 * i)), &failed });
    for (threads) |thread| thread.join();
    stop.store(true, .release);
    watcher.join();
    try std.testing.expect(!failed.load(.acquire));
    try std.testing.expectEqual(320, writer.live.info().deleted);
    try std.testing.expectEqual(160, writer.live.info().sequence);
}
