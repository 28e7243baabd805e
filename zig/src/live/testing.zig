//! A folder without rows and handles over it, for tests of live data: as each process has, a handle has a store of its own.
const std = @import("std");
const FolderStore = @import("store.zig").FolderStore;
const folder = @import("folder.zig");
const find = @import("find.zig");
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Live = folder.Live(FolderStore);
const allocator = std.testing.allocator;

pub const World = struct {
    tmp: std.testing.TmpDir,
    path: []u8,

    pub fn init() !World {
        var tmp = std.testing.tmpDir(.{ .iterate = true });
        const path = try tmp.dir.realpathAlloc(allocator, ".");
        var store = try FolderStore.open(path);
        defer store.deinit();
        var diagnostic: Diagnostic = .{};
        try folder.create(allocator, &store, .{ .dim = 1, .metric = .l2, .dtype = .f32 }, &diagnostic);
        return .{ .tmp = tmp, .path = path };
    }

    pub fn deinit(self: *World) void {
        allocator.free(self.path);
        self.tmp.cleanup();
    }
};

pub const Opened = struct {
    store: FolderStore,
    live: Live,
    diagnostic: Diagnostic = .{},

    pub fn open(self: *Opened, world: *const World, options: folder.Options, ids: []const find.Ids) !void {
        self.diagnostic = .{};
        self.store = try .open(world.path);
        errdefer self.store.deinit();
        self.live = try .open(allocator, &self.store, options, &self.diagnostic);
        errdefer self.live.deinit();
        for (ids, 0..) |one, segment| try self.live.attach(segment, one, &self.diagnostic);
        try self.live.begin(.{}, &self.diagnostic);
    }

    /// As a kill would.
    pub fn close(self: *Opened) void {
        self.live.deinit();
        self.store.deinit();
    }

    /// Rows of one dimension: the id and the vector differ by `offset`.
    pub fn put(self: *Opened, ids: []const i64, offset: f32, is_upsert: bool, request: []const u8) !folder.Done {
        var vectors: [16]f32 = undefined;
        for (ids, vectors[0..ids.len]) |id, *x| x.* = @as(f32, @floatFromInt(id)) + offset;
        return self.live.insert(.{
            .count = @intCast(ids.len),
            .kind = .numbers,
            .is_upsert = is_upsert,
            .ids = .{ .numbers = ids },
            .vectors = std.mem.sliceAsBytes(vectors[0..ids.len]),
            .metadata = "m",
            .request = request,
        }, null, &self.diagnostic);
    }

    /// The ids of the delta's rows that live, and their vectors less the ids.
    pub fn expect_delta(self: *Opened, ids: []const i64, offsets: []const f32) !void {
        const view = try self.live.take_view();
        defer view.release();
        var found: usize = 0;
        var first: u32 = 0;
        for (view.records) |record| {
            for (0..record.rows.count) |i| {
                if (view.deleted.contains(first + i)) continue;
                try std.testing.expect(found < ids.len);
                const x = std.mem.bytesAsSlice(f32, record.rows.vectors)[i];
                try std.testing.expectEqual(ids[found], record.rows.ids.numbers[i]);
                try std.testing.expectEqual(@as(f32, @floatFromInt(ids[found])) + offsets[found], x);
                found += 1;
            }
            first += record.rows.count;
        }
        try std.testing.expectEqual(ids.len, found);
    }

    pub fn writer(self: *Opened, world: *const World) !void {
        return self.open(world, .{ .writable = true, .timeout_ns = 0 }, &.{});
    }

    pub fn delete(self: *Opened, ids: []const i64) !folder.Done {
        return self.live.delete(.{ .numbers = ids }, null, &self.diagnostic);
    }

    /// The ids of the rows of the delta that a search finds, as it begins now.
    pub fn expect_rows(self: *Opened, ids: []const i64) !void {
        try std.testing.expect(try self.live.refresh(&self.diagnostic) != .moved);
        const view = try self.live.take_view();
        defer view.release();
        var found: std.ArrayList(i64) = .empty;
        defer found.deinit(allocator);
        var first: u32 = 0;
        for (view.records) |record| {
            for (record.rows.ids.numbers, 0..) |id, i| if (!view.deleted.contains(first + i)) try found.append(allocator, id);
            first += record.rows.count;
        }
        try std.testing.expectEqualSlices(i64, ids, found.items);
    }
};
