//! A folder as one process of a world has it open, and what its segments hold, which a caller of the library would have mapped.
const std = @import("std");
const layout = @import("layout");
const live_room = @import("live");
const model = @import("model.zig");
const sim_store = @import("store.zig");
const SimulatedStore = sim_store.SimulatedStore;
const State = model.State;

pub const Live = live_room.Live(SimulatedStore);
pub const SegmentRow = extern struct { id: i64, value: u64 };
/// A segment's only file beside those that velo adds to it.
pub const data_name = "data";

pub const Handle = struct {
    store: SimulatedStore,
    live: Live,
    arena: std.heap.ArenaAllocator,
    segments: std.StringHashMapUnmanaged([]const SegmentRow) = .empty,
    diagnostic: live_room.Diagnostic = .{},
    /// The page's counter when this followed last.
    changes_seen: ?u64 = null,

    /// Where it fails, its store has ended as well.
    pub fn open(self: *Handle, allocator: std.mem.Allocator, store: SimulatedStore, options: live_room.Options, built: live_room.Built) !void {
        self.* = .{ .store = store, .live = undefined, .arena = .init(allocator) };
        errdefer self.arena.deinit();
        errdefer self.store.deinit();
        self.live = try Live.open(allocator, &self.store, options, &self.diagnostic);
        errdefer self.live.deinit();
        for (self.live.segments.items, 0..) |segment, i| {
            // What was read stays in memory.
            const rows = try self.read_segment(segment.path, segment.n);
            try self.live.attach(i, .{ .numbers = try self.ids_of(rows) }, &self.diagnostic);
        }
        try self.live.begin(built, &self.diagnostic);
    }

    pub fn close(self: *Handle) void {
        self.live.deinit();
        self.store.deinit();
        self.arena.deinit();
    }

    /// Of a folder as it was built the files of its segment are in the folder itself.
    fn read_segment(self: *Handle, path: []const u8, n: u64) ![]const SegmentRow {
        const allocator = self.arena.allocator();
        const store = &self.store;
        const name = if (self.live.is_written()) try std.fmt.allocPrint(allocator, "{s}/" ++ data_name, .{path}) else data_name;
        const hold = if (self.live.is_written()) store.hold(path) catch return error.SegmentLost else null;
        defer if (hold) |one| store.release(one);
        const file = store.open_file(name, .read_only) catch return error.SegmentLost;
        defer store.close(file);
        const rows = try allocator.alloc(SegmentRow, @intCast(n));
        if (try store.read(file, std.mem.sliceAsBytes(rows), 0) != rows.len * @sizeOf(SegmentRow)) return error.SegmentLost;
        try self.keep_rows(path, rows);
        return rows;
    }

    pub fn keep_rows(self: *Handle, path: []const u8, rows: []const SegmentRow) !void {
        const allocator = self.arena.allocator();
        try self.segments.put(allocator, try allocator.dupe(u8, path), rows);
    }

    pub fn ids_of(self: *Handle, rows: []const SegmentRow) ![]const i64 {
        const ids = try self.arena.allocator().alloc(i64, rows.len);
        for (rows, ids) |row, *id| id.* = row.id;
        return ids;
    }

    /// The rows that a search with this view finds, each with its place.
    pub fn state_of(self: *const Handle, view: *const live_room.View, places: ?*[model.slots]?live_room.Row) !State {
        var found: State = @splat(0);
        for (view.segments, 0..) |segment, number| {
            for (self.segments.get(segment.path) orelse return error.SegmentLost, 0..) |row, vertex| {
                if (segment.deleted) |deleted| if (deleted.contains(vertex)) continue;
                try put(&found, row.id, @intCast(row.value));
                if (places) |all| all[@intCast(row.id)] = .{ .segment = @intCast(number), .vertex = @intCast(vertex) };
            }
        }
        var first: u32 = 0;
        for (view.records) |record| {
            for (record.rows.ids.numbers, std.mem.bytesAsSlice(f32, record.rows.vectors), first..) |id, x, row| {
                if (view.deleted.contains(row)) continue;
                try put(&found, id, @intFromFloat(x));
                if (places) |all| all[@intCast(id)] = .{ .segment = live_room.delta_segment, .vertex = @intCast(row) };
            }
            first += record.rows.count;
        }
        return found;
    }

    fn put(found: *State, id: i64, value: u16) !void {
        const slot = &found[@intCast(id)];
        if (slot.* != 0) return error.TwoRows;
        slot.* = value;
    }
};

/// A folder as a build leaves it, with one segment of these rows.
pub fn build(allocator: std.mem.Allocator, store: *SimulatedStore, rows: []const SegmentRow) !void {
    const bytes = std.mem.sliceAsBytes(rows);
    var manifest = layout.manifest.example(rows.len, &.{.{ .name = data_name, .bytes = bytes.len, .checksum = "00" }});
    manifest.dim = 1;
    const text = try layout.manifest.write(allocator, &manifest);
    defer allocator.free(text);
    for ([_][]const u8{ data_name, layout.manifest.file_name }, [_][]const u8{ bytes, text }) |name, content| {
        const file = try store.create(name);
        defer store.close(file);
        try store.write(file, content, 0);
        try store.sync(file);
    }
    try store.sync_folder(".");
}
