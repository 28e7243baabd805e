//! Columns over borrowed buffers in Arrow's layout: a validity bitmap, values, and offsets for lists.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const postings_room = @import("postings.zig");
const Diagnostic = @import("diagnostic.zig").Diagnostic;

/// As velo_column_type in velo.h.
pub const ColumnType = enum(i32) {
    bool = 0,
    i8 = 1,
    i16 = 2,
    i32 = 3,
    i64 = 4,
    u8 = 5,
    u16 = 6,
    u32 = 7,
    u64 = 8,
    f32 = 9,
    f64 = 10,
    code32 = 11,
    list_code32 = 12,
    list_i64 = 13,

    pub fn is_list(self: ColumnType) bool {
        return self == .list_code32 or self == .list_i64;
    }
};

pub const Column = struct {
    name: []const u8,
    type: ColumnType,
    row_count: u64,
    /// Null: no row is null.
    validity: ?[*]const u8,
    /// Bits before row 0.
    validity_offset: u64 = 0,
    values: ?[*]const u8,
    /// Elements (bits, for bool) before row 0; for lists, before element 0.
    values_offset: u64 = 0,
    /// Elements (bits, for bool) behind `values`, the skipped ones included.
    values_count: u64,
    /// Lists: row_count + 1 entries, counted from element 0.
    offsets: ?[*]align(1) const i32 = null,

    pub inline fn is_valid(self: *const Column, row: usize) bool {
        const bits = self.validity orelse return true;
        const bit = self.validity_offset + row;
        return (bits[bit / 8] >> @intCast(bit % 8)) & 1 == 1;
    }

    /// Validity of `count` rows from `first`, one bit each.
    pub inline fn valid_word(self: *const Column, first: usize, count: usize) u64 {
        const bits = self.validity orelse return low_bits(count);
        return load_bits(bits, self.validity_offset + first, count);
    }

    /// Values from row 0 (or element 0). Arrow promises alignment to 8 bytes, a slice of somebody's buffer does not.
    pub inline fn elements(self: *const Column, comptime T: type) [*]align(1) const T {
        const all: [*]align(1) const T = @ptrCast(self.values.?);
        return all + self.values_offset;
    }

    pub inline fn bool_at(self: *const Column, row: usize) bool {
        const bit = self.values_offset + row;
        return (self.values.?[bit / 8] >> @intCast(bit % 8)) & 1 == 1;
    }
};

pub inline fn low_bits(count: usize) u64 {
    assert(count <= 64);
    return if (count == 64) ~@as(u64, 0) else (@as(u64, 1) << @intCast(count)) - 1;
}

/// `count` bits from bit `first`; touches no byte that holds none of them.
pub inline fn load_bits(bytes: [*]const u8, first: u64, count: usize) u64 {
    assert(count <= 64);
    const start = bytes + first / 8;
    const shift: u6 = @intCast(first % 8);
    if (count == 64) {
        const low = std.mem.readInt(u64, start[0..8], .little) >> shift;
        return if (shift == 0) low else low | @as(u64, start[8]) << @intCast(@as(u7, 64) - shift);
    }
    var wide: u128 = 0;
    for (0..(shift + count + 7) / 8) |i| wide |= @as(u128, start[i]) << @intCast(8 * i);
    return @as(u64, @truncate(wide >> shift)) & low_bits(count);
}

pub const AddError = error{ InvalidArgument, OutOfMemory };

/// One bit of 64 for a value; a list's signature has the bits of its elements. Where a wanted bit is missing, so is
/// the value: most lists are turned down by one look at 8 bytes, without a walk to their offsets and elements.
pub inline fn signature_bit(value: anytype) u64 {
    const hashed = @as(u64, @bitCast(@as(i64, value))) *% 0x9e37_79b9_7f4a_7c15;
    return @as(u64, 1) << @intCast(hashed >> 58);
}

/// A store of columns of equal length. Filters compiled over it point into it.
pub const Columns = struct {
    alloc: std.mem.Allocator,
    row_count: u64,
    by_name: std.StringArrayHashMapUnmanaged(Column) = .empty,
    /// Which rows have which value, mapped; without them filters know what a sample tells.
    postings: ?*postings_room.Postings = null,
    /// Signatures of list columns by their place in `by_name`, where `postings` has none, made when a filter first needs
    /// them: 8 bytes a row.
    signatures: std.AutoArrayHashMapUnmanaged(usize, []const u64) = .empty,
    signatures_lock: std.Thread.Mutex = .{},

    pub fn init(alloc: std.mem.Allocator, row_count: u64) error{InvalidArgument}!Columns {
        if (row_count > base.limits.vertices_max) return error.InvalidArgument;
        return .{ .alloc = alloc, .row_count = row_count };
    }

    pub fn deinit(self: *Columns) void {
        if (self.postings) |mapped| mapped.deinit();
        for (self.signatures.values()) |signatures| self.alloc.free(signatures);
        self.signatures.deinit(self.alloc);
        for (self.by_name.keys()) |name| self.alloc.free(name);
        self.by_name.deinit(self.alloc);
        self.* = undefined;
    }

    /// Checks everything that a later look-up relies on, so that none of them checks again. The name is copied, the
    /// buffers are borrowed.
    pub fn add(self: *Columns, column: Column, diagnostic: *Diagnostic) AddError!void {
        try check(self.row_count, &column, diagnostic);
        if (self.by_name.contains(column.name)) {
            diagnostic.say("column {s} was added already", .{column.name});
            return error.InvalidArgument;
        }
        const name = try self.alloc.dupe(u8, column.name);
        errdefer self.alloc.free(name);
        var owned = column;
        owned.name = name;
        try self.by_name.put(self.alloc, name, owned);
    }

    pub fn get(self: *const Columns, name: []const u8) ?*const Column {
        return self.by_name.getPtr(name);
    }

    /// Maps the postings of these columns; after all were added, before the first filter.
    pub fn load_postings(self: *Columns, path: []const u8, generation: u64, diagnostic: *Diagnostic) postings_room.OpenError!void {
        assert(self.postings == null);
        self.postings = try .open(self.alloc, path, self, generation, diagnostic);
    }

    /// The postings of a column, or null where there are none. Any thread.
    pub fn postings_of(self: *Columns, column: *const Column, diagnostic: *Diagnostic) postings_room.PartError!?*const postings_room.ColumnPostings {
        const mapped = self.postings orelse return null;
        return mapped.of(self.by_name.getIndex(column.name).?, column, diagnostic);
    }

    /// One word a row of a list column. Any thread; the first one makes them, where they are not mapped.
    pub fn signatures_of(self: *Columns, column: *const Column, diagnostic: *Diagnostic) postings_room.PartError![*]const u64 {
        assert(column.type.is_list());
        const index = self.by_name.getIndex(column.name).?;
        if (self.postings) |mapped| if (try mapped.signatures(index, column, diagnostic)) |words| return words;
        self.signatures_lock.lock();
        defer self.signatures_lock.unlock();
        const found = try self.signatures.getOrPut(self.alloc, index);
        if (!found.found_existing) {
            errdefer _ = self.signatures.pop();
            const words = try self.alloc.alloc(u64, @intCast(self.row_count));
            sign_lists(column, words);
            found.value_ptr.* = words;
        }
        return found.value_ptr.ptr;
    }

    /// Memory taken beside the columns' own buffers, and of it what is mapped from a file.
    pub fn memory(self: *Columns) struct { resident_bytes: u64, mapped_bytes: u64 } {
        self.signatures_lock.lock();
        defer self.signatures_lock.unlock();
        return .{
            .resident_bytes = 8 * self.row_count * self.signatures.count(),
            .mapped_bytes = if (self.postings) |mapped| mapped.bytes.len else 0,
        };
    }
};

/// The signature of every list of a column.
pub fn sign_lists(column: *const Column, words: []u64) void {
    if (words.len > 0) switch (column.type) {
        .list_code32 => sign(i32, column, words),
        .list_i64 => sign(i64, column, words),
        else => unreachable,
    };
}

fn sign(comptime T: type, column: *const Column, words: []u64) void {
    const offsets = column.offsets.?;
    const empty = column.values == null; // no list has an element
    for (words, 0..) |*word, row| {
        word.* = 0;
        if (empty) continue;
        for (column.elements(T)[@intCast(offsets[row])..@intCast(offsets[row + 1])]) |value| word.* |= signature_bit(value);
    }
}

fn check(row_count: u64, column: *const Column, diagnostic: *Diagnostic) AddError!void {
    const name = column.name;
    if (column.row_count != row_count) {
        diagnostic.say("column {s} has {d} rows, the index has {d}", .{ name, column.row_count, row_count });
        return error.InvalidArgument;
    }
    if (column.values_offset > column.values_count) {
        diagnostic.say("column {s} starts at value {d} of {d}", .{ name, column.values_offset, column.values_count });
        return error.InvalidArgument;
    }
    const values_count = column.values_count - column.values_offset;
    const needed = if (column.type.is_list()) try check_offsets(column, values_count, diagnostic) else row_count;
    if (needed > values_count) {
        diagnostic.say("column {s} has {d} values, {d} are needed", .{ name, values_count, needed });
        return error.InvalidArgument;
    }
    if (needed > 0 and column.values == null) {
        diagnostic.say("column {s} has no values", .{name});
        return error.InvalidArgument;
    }
}

/// The last offset, once all are seen to rise from zero or more.
fn check_offsets(column: *const Column, values_count: u64, diagnostic: *Diagnostic) AddError!u64 {
    if (column.row_count == 0) return 0;
    const offsets = column.offsets orelse {
        diagnostic.say("column {s} is a list without offsets", .{column.name});
        return error.InvalidArgument;
    };
    var before: i32 = 0;
    for (offsets[0 .. column.row_count + 1], 0..) |offset, row| {
        if (offset < before or offset > values_count) {
            diagnostic.say("column {s}: offset {d} of row {d} does not lie between {d} and {d}", .{
                column.name, offset, row, before, values_count,
            });
            return error.InvalidArgument;
        }
        before = offset;
    }
    return @intCast(before);
}

test "bits are read from any position and none beyond the last" {
    var prng = base.Prng.init(7);
    var bytes: [40]u8 = undefined;
    for (&bytes) |*byte| byte.* = @truncate(prng.next());
    for (0..2000) |_| {
        const count: usize = @intCast(prng.below(65));
        const first: usize = @intCast(prng.below(bytes.len * 8 - count + 1));
        // The slice ends with the last byte that holds a wanted bit: valgrind and the sanitizer see a read beyond.
        const exact = try std.testing.allocator.dupe(u8, bytes[0 .. (first + count + 7) / 8]);
        defer std.testing.allocator.free(exact);
        const got = load_bits(exact.ptr, first, count);
        for (0..64) |i| {
            const expected = i < count and (bytes[(first + i) / 8] >> @intCast((first + i) % 8)) & 1 == 1;
            try std.testing.expectEqual(expected, (got >> @intCast(i)) & 1 == 1);
        }
    }
}
