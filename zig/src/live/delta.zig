//! The delta: rows that were written and that no segment holds yet. Each record of the log that brings rows stays in memory as
//! the log has it, so that a new log can carry it over unchanged, and a segment be built from it.
//!
//! A row has the number of its place. Rows are only ever added; a commit, which makes a part of the first records, begins a new
//! delta with the others (folder.zig). Each reader holds the delta that it looks at, so its records stay until the last one lets go.
const std = @import("std");
const base = @import("base");
const find = @import("find.zig");
const codes_file = @import("codes.zig");
const wal_file = @import("wal.zig");
const rows_file = @import("rows.zig");
const scan = @import("scan.zig");
const Ids = find.Ids;
const Rows = rows_file.Rows;
const BitSet = base.BitSet;

/// Rows of the delta have this in the place of a segment's number.
pub const segment_number = std.math.maxInt(u32);
/// A row of a segment, or of the delta (`segment_number`).
pub const Row = struct { segment: u32, vertex: u32 };
/// Memory of a record beside its bytes, and of a row beside that and its code: the list of records; marks, the place in the map.
const record_overhead = 128;
const row_overhead = 12;

/// Some rows that came in one call. `bytes` begins with room for the record's header.
pub const Record = struct {
    holders: std.atomic.Value(u32) = .init(1),
    bytes: []align(8) u8,
    rows: Rows,

    /// Takes the bytes over, also where it fails.
    pub fn create(allocator: std.mem.Allocator, bytes: []align(8) u8, count: u32) error{ Damaged, OutOfMemory }!*Record {
        errdefer allocator.free(bytes);
        const rows = try rows_file.parse(@alignCast(bytes[wal_file.record_header_bytes..]), count);
        const self = try allocator.create(Record);
        self.* = .{ .bytes = bytes, .rows = rows };
        return self;
    }

    pub fn release(self: *Record, allocator: std.mem.Allocator) void {
        if (self.holders.fetchSub(1, .acq_rel) != 1) return;
        allocator.free(self.bytes);
        allocator.destroy(self);
    }
};

pub const Place = struct { record: *Record, at: u32 };

/// Bits that grow with the delta, and how many of them are set.
const Marks = struct {
    bits: std.DynamicBitSetUnmanaged = .{},
    count: u32 = 0,

    fn insert_new(self: *Marks, row: u32) bool {
        if (self.bits.isSet(row)) return false;
        self.bits.set(row);
        self.count += 1;
        return true;
    }

    fn remove(self: *Marks, row: u32) void {
        self.bits.unset(row);
        self.count -= 1;
    }
};

const Asked = struct { ids: Ids, row: usize };

const StoredContext = struct {
    delta: *const Delta,

    pub fn hash(self: @This(), row: u32) u64 {
        const place = self.delta.place_of(row);
        return place.record.rows.ids.hash(place.at);
    }

    pub fn eql(self: @This(), a: u32, b: u32) bool {
        const first = self.delta.place_of(a);
        const second = self.delta.place_of(b);
        return first.record.rows.ids.equal(first.at, second.record.rows.ids, second.at);
    }
};

const AskedContext = struct {
    delta: *const Delta,

    pub fn hash(_: @This(), asked: Asked) u64 {
        return asked.ids.hash(asked.row);
    }

    pub fn eql(self: @This(), asked: Asked, row: u32) bool {
        const place = self.delta.place_of(row);
        return asked.ids.equal(asked.row, place.record.rows.ids, place.at);
    }
};

pub const Delta = struct {
    allocator: std.mem.Allocator,
    holders: std.atomic.Value(u32) = .init(1),
    records: std.ArrayList(*Record) = .empty,
    /// The number of each record's first row.
    firsts: std.ArrayList(u32) = .empty,
    rows: u32 = 0,
    bytes: u64 = 0,
    /// The rows that searches may see: none of a record that waits for its sync.
    shown_records: u32 = 0,
    shown_rows: u32 = 0,
    deleted: Marks = .{},
    /// Those and the ones whose record waits for its sync.
    pending_delete: Marks = .{},
    /// The newest row of each id.
    newest: std.HashMapUnmanaged(u32, void, StoredContext, std.hash_map.default_max_load_percentage) = .empty,
    codes: codes_file.Codes = .{},
    /// Of its rows; 0 before the first.
    dim: u32 = 0,

    pub fn create(allocator: std.mem.Allocator) error{OutOfMemory}!*Delta {
        const self = try allocator.create(Delta);
        self.* = .{ .allocator = allocator };
        return self;
    }

    pub fn release(self: *Delta) void {
        if (self.holders.fetchSub(1, .acq_rel) != 1) return;
        const allocator = self.allocator;
        for (self.records.items) |record| record.release(allocator);
        self.records.deinit(allocator);
        self.firsts.deinit(allocator);
        self.deleted.bits.deinit(allocator);
        self.pending_delete.bits.deinit(allocator);
        self.newest.deinit(allocator);
        self.codes.deinit(allocator);
        allocator.destroy(self);
    }

    pub fn hold(self: *Delta) *Delta {
        _ = self.holders.fetchAdd(1, .monotonic);
        return self;
    }

    pub fn place_of(self: *const Delta, row: u32) Place {
        const next = std.sort.upperBound(u32, self.firsts.items, row, struct {
            fn order(asked: u32, first: u32) std.math.Order {
                return std.math.order(asked, first);
            }
        }.order);
        return .{ .record = self.records.items[next - 1], .at = row - self.firsts.items[next - 1] };
    }

    /// The amount that a record of this size adds to `bytes`.
    pub fn cost(record_bytes: usize, count: u32, dim: u32) u64 {
        return record_bytes + record_overhead + (row_overhead + codes_file.row_bytes(dim)) * count;
    }

    /// Room for a record, so that `append` cannot fail.
    pub fn reserve(self: *Delta, count: u32, dim: u32) error{OutOfMemory}!void {
        const allocator = self.allocator;
        self.dim = dim;
        try self.records.ensureUnusedCapacity(allocator, 1);
        try self.firsts.ensureUnusedCapacity(allocator, 1);
        try self.newest.ensureUnusedCapacityContext(allocator, count, .{ .delta = self });
        const wanted = self.rows + count;
        try self.codes.reserve(allocator, wanted);
        if (wanted > self.deleted.bits.bit_length) {
            const room = @max(wanted, self.deleted.bits.bit_length *| 2);
            try self.deleted.bits.resize(allocator, room, false);
            try self.pending_delete.bits.resize(allocator, room, false);
        }
    }

    /// The record's rows are the newest of their ids; it is the delta's from now on.
    pub fn append(self: *Delta, record: *Record) void {
        const count = record.rows.count;
        self.records.appendAssumeCapacity(record);
        self.firsts.appendAssumeCapacity(self.rows);
        const first = self.rows;
        self.rows += count;
        self.codes.place(first, record.rows.vectors, count);
        self.bytes += cost(record.bytes.len, count, self.dim);
        for (0..count) |i| {
            const asked: Asked = .{ .ids = record.rows.ids, .row = i };
            const entry = self.newest.getOrPutAssumeCapacityAdapted(asked, AskedContext{ .delta = self });
            // Of an id that a record has twice the last row counts, here and whenever the log is read again.
            if (entry.found_existing and entry.key_ptr.* >= first) {
                _ = self.mark_pending_delete(entry.key_ptr.*);
                self.mark_deleted(entry.key_ptr.*);
            }
            entry.key_ptr.* = first + @as(u32, @intCast(i));
        }
    }

    /// Number of records that new searches see.
    pub fn show(self: *Delta, records: u32) void {
        if (records <= self.shown_records) return;
        self.shown_records = records;
        self.shown_rows = if (records == self.records.items.len) self.rows else self.firsts.items[records];
    }

    /// The row that has this id and is not gone.
    pub fn find_row(self: *const Delta, ids: Ids, row: usize) ?u32 {
        if (self.rows == 0) return null;
        const found = self.newest.getKeyAdapted(Asked{ .ids = ids, .row = row }, AskedContext{ .delta = self }) orelse return null;
        return if (self.pending_delete.bits.isSet(found)) null else found;
    }

    pub fn mark_pending_delete(self: *Delta, row: u32) bool {
        return self.pending_delete.insert_new(row);
    }

    pub fn unmark_pending_delete(self: *Delta, row: u32) void {
        self.pending_delete.remove(row);
    }

    pub fn mark_deleted(self: *Delta, row: u32) void {
        _ = self.deleted.insert_new(row);
    }

    /// The records from `first` on, with their marks, as a delta of their own.
    pub fn after(self: *const Delta, first: u32) error{OutOfMemory}!*Delta {
        const self_rows = if (first == self.records.items.len) self.rows else self.firsts.items[first];
        const rest = try create(self.allocator);
        errdefer rest.release();
        for (self.records.items[first..]) |record| {
            try rest.reserve(record.rows.count, self.dim);
            _ = record.holders.fetchAdd(1, .monotonic);
            rest.append(record);
        }
        for (0..rest.rows) |i| {
            const row: u32 = @intCast(i);
            if (self.pending_delete.bits.isSet(self_rows + row)) _ = rest.pending_delete.insert_new(row);
            if (self.deleted.bits.isSet(self_rows + row)) _ = rest.deleted.insert_new(row);
        }
        rest.show(self.shown_records -| first);
        return rest;
    }

    /// All that was written is seen.
    pub fn show_all(self: *Delta) void {
        self.show(@intCast(self.records.items.len));
        for (0..self.rows) |row| {
            if (self.pending_delete.bits.isSet(row)) self.mark_deleted(@intCast(row));
        }
    }
};

// ---- views ----
//
// A view is the state that one search sees: the segments and their dead rows, and the delta up to a row, as they were at one moment. It stays as it
// is while others write, and outlives the folder that it was taken of.

pub const SegmentView = struct {
    /// In the view's own memory.
    path: []const u8,
    uuid: []const u8,
    n: u64,
    /// Null: none of its rows is dead.
    deleted: ?BitSet,
};

pub const View = struct {
    allocator: std.mem.Allocator,
    /// Of segments and delta: rows have other numbers once a commit has changed it.
    layout: u64,
    /// Commits that made a segment of the delta.
    flushes: u64,
    sequence: u64,
    /// Of the columns that its rows have.
    schema_version: u64,
    /// Its rows are those of the build, perhaps less some that were deleted: their order is that of the build, too.
    is_as_built: bool,
    segments: []SegmentView,
    names: []u8,
    delta: *Delta,
    records: []*Record,
    rows: u32,
    /// Of the delta.
    deleted: BitSet,
    shape: scan.Shape,

    pub fn release(self: *View) void {
        const allocator = self.allocator;
        for (self.segments) |*segment| if (segment.deleted) |*set| set.deinit(allocator);
        allocator.free(self.segments);
        allocator.free(self.names);
        allocator.free(self.records);
        self.deleted.deinit(allocator);
        self.delta.release();
        allocator.destroy(self);
    }
};

pub fn append(to: *std.ArrayList(u8), text: []const u8) []const u8 {
    to.appendSliceAssumeCapacity(text);
    return to.items[to.items.len - text.len ..];
}

pub fn copy_bits(to: *BitSet, from: *const std.DynamicBitSetUnmanaged) void {
    for (to.words, from.masks[0..to.words.len]) |*word, mask| word.* = mask;
    const rest: u6 = @intCast(to.len % 64);
    if (rest != 0) to.words[to.words.len - 1] &= (@as(u64, 1) << rest) - 1;
}

test "rows are found by their ids, the newest of each, and what follows a record stands alone" {
    const allocator = std.testing.allocator;
    const delta = try Delta.create(allocator);
    defer delta.release();
    var prng = std.Random.DefaultPrng.init(7);
    var newest: [40]?u32 = @splat(null);
    var firsts: [30]u32 = undefined;
    for (0..30) |turn| {
        firsts[turn] = delta.rows;
        var ids: [3]i64 = undefined;
        for (&ids, 0..) |*id, i| id.* = @intCast((prng.random().uintLessThan(u64, 13)) * 3 + i);
        const bytes = try rows_file.encode(allocator, .{ .kind = .numbers, .ids = .{ .numbers = &ids }, .vectors = &@as([36]u8, @splat(@intCast(turn))) }, 3);
        for (ids, 0..) |id, i| {
            if (newest[@intCast(id)]) |row| _ = delta.mark_pending_delete(row);
            newest[@intCast(id)] = delta.rows + @as(u32, @intCast(i));
        }
        const record = try Record.create(allocator, bytes, 3);
        try delta.reserve(3, 12);
        delta.append(record);
    }
    try std.testing.expectEqual(90, delta.rows);
    const rest = try delta.after(11);
    defer rest.release();
    for (newest, 0..) |row, id| {
        const asked: Ids = .{ .numbers = &.{@intCast(id)} };
        try std.testing.expectEqual(row, delta.find_row(asked, 0));
        const later = if (row) |one| if (one >= firsts[11]) one - firsts[11] else null else null;
        try std.testing.expectEqual(later, rest.find_row(asked, 0));
    }
}
