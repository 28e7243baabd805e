//! Columns that filters look at: their values, and postings of them.
const std = @import("std");
const base = @import("base");
const posting_room = @import("posting.zig");
const assert = std.debug.assert;
const Posting = posting_room.Posting;

// ---- values ----
//
// Columns over borrowed buffers in Arrow's layout: a validity bitmap, values, and offsets for lists.

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

    /// Values from row 0 (or element 0). Arrow promises alignment to 8 bytes, a slice of another buffer does not.
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

const AddError = error{ InvalidArgument, OutOfMemory };

/// One bit of 64 for a value; a list's signature has the bits of its elements. A missing bit proves that the
/// value is missing: most lists are rejected by 8 bytes, without reading their offsets and elements.
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
    postings: ?*Postings = null,
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
    pub fn load_postings(self: *Columns, path: []const u8, generation: u64, diagnostic: *Diagnostic) OpenError!void {
        assert(self.postings == null);
        self.postings = try .open(self.alloc, path, self, generation, diagnostic);
    }

    /// The postings of a column, or null where there are none. Any thread.
    pub fn postings_of(self: *Columns, column: *const Column, diagnostic: *Diagnostic) PartError!?*const ColumnPostings {
        const mapped = self.postings orelse return null;
        return mapped.of(self.by_name.getIndex(column.name).?, column, diagnostic);
    }

    /// One word a row of a list column. Any thread; the first one makes them, where they are not mapped.
    pub fn signatures_of(self: *Columns, column: *const Column, diagnostic: *Diagnostic) PartError![*]const u64 {
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

/// The type of one value of a column, or of one element of its lists.
pub fn ValueType(comptime t: ColumnType) type {
    return switch (t) {
        .bool => bool,
        .code32, .list_code32 => i32,
        .list_i64 => i64,
        inline else => |scalar| switch (scalar) {
            .i8 => i8,
            .i16 => i16,
            .i32 => i32,
            .i64 => i64,
            .u8 => u8,
            .u16 => u16,
            .u32 => u32,
            .u64 => u64,
            .f32 => f32,
            .f64 => f64,
            else => unreachable,
        },
    };
}

// ---- postings ----
//
// `columns.postings`, mapped: for every column that filters see, which rows have which value. docs/FORMAT.md draws it.
//
// Two forms. *Values* keeps each distinct value with its rows, for columns whose values repeat and for lists (of each
// token the rows whose list holds it). *Order* keeps the rows sorted by value, for columns whose values hardly repeat;
// the values themselves stand in the column. Null and NaN are in neither.
//
// Opening checks sizes, and the sum of the directory. A column's part is summed when a filter first needs it.

comptime {
    assert(@import("builtin").cpu.arch.endian() == .little); // the file is used as it lies
}

pub const magic = "VELOPOST";
pub const version = 1;
pub const alignment = 64;
/// Values of the order kept apart, so that a search touches few rows.
pub const fences_max = 256;

pub const Header = extern struct {
    magic: [8]u8,
    /// xxh3-64 of the directory behind this field.
    checksum: u64,
    version: u32,
    column_count: u32,
    n: u64,
    directory_size: u64,
    file_size: u64,
    /// As `velo.generation` in columns.arrow.
    generation: u64,
    zero: u64 = 0,
};

pub const Form = enum(u32) { none = 0, values = 1, order = 2 };

pub const Entry = extern struct {
    name_offset: u32, // from the file's start
    name_size: u32,
    type: u32,
    form: u32,
    nulls: u64,
    entries: u64,
    distinct: u64,
    offset: u64,
    size: u64,
    checksum: u64,
    signatures_offset: u64, // 0: none
    signatures_checksum: u64,
};

comptime {
    assert(@sizeOf(Header) == 64 and @sizeOf(Entry) == 80);
}

pub const OpenError = error{ Corrupt, NewerVersion, Io, OutOfMemory };
pub const PartError = error{ Corrupt, OutOfMemory };

/// Places [from, to): of the directory of values, or of the order.
pub const Span = struct { from: u32, to: u32 };

/// The part of one column.
pub const ColumnPostings = struct {
    n: u32,
    form: Form,
    nulls: u64,
    entries: u32,
    distinct: u32,
    keys: []const u64 = &.{}, // values: of each; order: the fences
    starts: []const u32 = &.{}, // values: entries before each
    offsets: []const u64 = &.{}, // values: words before each
    words: []const u64 = &.{},
    width: u6 = 0, // order: of a row

    /// Entries in a span: of a scalar column, the rows that have one of its values.
    pub fn count(self: *const ColumnPostings, span: Span) u64 {
        if (self.form == .order) return span.to - span.from;
        return self.starts[span.to] - self.starts[span.from];
    }

    pub fn posting(self: *const ColumnPostings, value: u32) Posting {
        const from: usize = @intCast(self.offsets[value]);
        const to: usize = @intCast(self.offsets[value + 1]);
        return .init(self.n, self.starts[value + 1] - self.starts[value], self.words[from..to]);
    }

    inline fn row_in_order(self: *const ColumnPostings, place: u32) u32 {
        const row = posting_room.get(self.words.ptr, @as(usize, place) * self.width, self.width);
        return @intCast(@min(row, self.n - 1));
    }

    /// The i-th entry of a span, or one near it.
    pub fn select(self: *const ColumnPostings, span: Span, i: u32) u32 {
        if (self.form == .order) return self.row_in_order(span.from + i);
        const wanted = self.starts[span.from] + i;
        // The value whose entries hold it.
        const value = std.sort.upperBound(u32, self.starts[span.from .. span.to + 1], wanted, order_u32) + span.from - 1;
        return self.posting(@intCast(value)).select(wanted - self.starts[value]);
    }

    /// The first place whose key is at or above `key`.
    pub fn lower(self: *const ColumnPostings, column: *const Column, key: u64) u32 {
        if (self.form == .values) return @intCast(std.sort.lowerBound(u64, self.keys, key, order_u64));
        const fence = std.sort.lowerBound(u64, self.keys, key, order_u64);
        // Fence f is the key at place f * entries / fences.
        var from: u32 = if (fence == 0) 0 else self.fence_place(fence - 1);
        var to: u32 = if (fence == self.keys.len) self.entries else self.fence_place(fence);
        while (from < to) {
            const middle = from + (to - from) / 2;
            if ((key_at(column, self.row_in_order(middle)) orelse 0) < key) from = middle + 1 else to = middle;
        }
        return from;
    }

    /// The first place whose key is above `key`.
    pub fn upper(self: *const ColumnPostings, column: *const Column, key: u64) u32 {
        if (key == std.math.maxInt(u64)) return if (self.form == .values) self.distinct else self.entries;
        return self.lower(column, key + 1);
    }

    fn fence_place(self: *const ColumnPostings, fence: usize) u32 {
        return @intCast(@as(u64, fence) * self.entries / self.keys.len);
    }

    /// Calls `to.add(row)` for every entry of a span: ascending within a value.
    pub fn each(self: *const ColumnPostings, span: Span, to: anytype) void {
        if (self.form == .order) {
            for (span.from..span.to) |place| to.add(self.row_in_order(@intCast(place)));
            return;
        }
        for (span.from..span.to) |value| {
            const one = self.posting(@intCast(value));
            var it = one.iterator();
            while (it.next()) |row| to.add(row);
        }
    }
};

fn order_u32(key: u32, value: u32) std.math.Order {
    return std.math.order(key, value);
}

fn order_u64(key: u64, value: u64) std.math.Order {
    return std.math.order(key, value);
}

/// A number in the order of the values; 0.0 and -0.0 are one. Null for NaN.
pub inline fn key_of(comptime T: type, value: T) ?u64 {
    switch (T) {
        bool => return @intFromBool(value),
        f32, f64 => {
            const wide: f64 = value;
            if (wide != wide) return null;
            const raw: u64 = @bitCast(if (wide == 0) 0.0 else wide);
            return if (raw >> 63 == 1) ~raw else raw | @as(u64, 1) << 63;
        },
        else => return if (@typeInfo(T).int.signedness == .signed)
            @as(u64, @bitCast(@as(i64, value))) ^ (@as(u64, 1) << 63)
        else
            value,
    }
}

/// Of a scalar column; null for NaN. Nulls are the caller's affair.
pub fn key_at(column: *const Column, row: usize) ?u64 {
    return switch (column.type) {
        .bool => key_of(bool, column.bool_at(row)),
        .list_code32, .list_i64 => unreachable,
        inline else => |t| key_of(ValueType(t), column.elements(ValueType(t))[row]),
    };
}

pub fn words_of_order(entries: u64, width: u6) usize {
    return @intCast((entries * width + 63) / 64);
}

pub fn width_of(n: u64) u6 {
    return @intCast(64 - @clz(@max(n, 2) - 1));
}

/// Bytes of a column's part; null where they overflow. `words` are those of all postings, in the form `values`.
fn part_size(form: Form, n: u64, entries: u64, distinct: u64, words: u64) ?u64 {
    const size: u128 = switch (form) {
        .none => 0,
        .values => 8 * @as(u128, distinct) + 4 * (@as(u128, distinct) + 1 + (distinct + 1) % 2) + 8 * (@as(u128, distinct) + 1) + 8 * @as(u128, words),
        .order => 8 * (@as(u128, @min(fences_max, entries)) + words_of_order(entries, width_of(n))),
    };
    return std.math.cast(u64, size);
}

const Postings = struct {
    alloc: std.mem.Allocator,
    name: []const u8,
    bytes: []align(std.heap.page_size_min) const u8,
    header: Header,
    lock: std.Thread.Mutex = .{},
    /// A column's place in the store to its part, once it was checked.
    checked: std.AutoHashMapUnmanaged(usize, *ColumnPostings) = .empty,
    signed: std.AutoHashMapUnmanaged(usize, void) = .empty,

    /// Maps the file and checks its directory against the columns.
    pub fn open(alloc: std.mem.Allocator, path: []const u8, columns: *const Columns, generation: u64, diagnostic: *Diagnostic) OpenError!*Postings {
        const name = std.fs.path.basename(path);
        const file = std.fs.cwd().openFile(path, .{}) catch |err| {
            diagnostic.in_file(name, "cannot be opened: {t}", .{err});
            return error.Io;
        };
        defer file.close();
        const stat = file.stat() catch |err| {
            diagnostic.in_file(name, "cannot be looked at: {t}", .{err});
            return error.Io;
        };
        if (stat.size < @sizeOf(Header)) return bad(diagnostic, name, "it is cut short");
        const bytes = std.posix.mmap(null, @intCast(stat.size), std.posix.PROT.READ, .{ .TYPE = .SHARED }, file.handle, 0) catch |err| {
            diagnostic.in_file(name, "cannot be mapped: {t}", .{err});
            return if (err == error.OutOfMemory) error.OutOfMemory else error.Io;
        };
        errdefer std.posix.munmap(bytes);
        const self = try alloc.create(Postings);
        errdefer alloc.destroy(self);
        self.* = .{ .alloc = alloc, .name = try alloc.dupe(u8, name), .bytes = bytes, .header = std.mem.bytesToValue(Header, bytes[0..@sizeOf(Header)]) };
        errdefer alloc.free(self.name);
        try self.check(columns, diagnostic);
        if (self.header.generation != generation) return self.corrupt(diagnostic, "it belongs to other columns");
        return self;
    }

    pub fn deinit(self: *Postings) void {
        var parts = self.checked.valueIterator();
        while (parts.next()) |part| self.alloc.destroy(part.*);
        self.checked.deinit(self.alloc);
        self.signed.deinit(self.alloc);
        std.posix.munmap(self.bytes);
        self.alloc.free(self.name);
        self.alloc.destroy(self);
    }

    fn check(self: *const Postings, columns: *const Columns, diagnostic: *Diagnostic) OpenError!void {
        const header = &self.header;
        if (!std.mem.eql(u8, &header.magic, magic)) return self.corrupt(diagnostic, "it does not begin as one");
        if (header.version > version) {
            diagnostic.in_file(self.name, "has version {d}, this library reads up to {d}", .{ header.version, version });
            return error.NewerVersion;
        }
        if (header.file_size != self.bytes.len) return self.corrupt(diagnostic, "its size is not the one it was written with");
        const least = @sizeOf(Header) + @as(u64, header.column_count) * @sizeOf(Entry);
        if (header.directory_size < least or header.directory_size > self.bytes.len) return self.corrupt(diagnostic, "its directory lies outside");
        if (base.checksum(self.bytes[16..@intCast(header.directory_size)]) != header.checksum) return self.corrupt(diagnostic, "the checksum of its directory does not match");
        if (header.n != columns.row_count) return self.corrupt(diagnostic, "it is of another number of rows");
        for (self.entries()) |*entry| {
            const ends = .{ @as(u64, entry.name_offset) + entry.name_size, add(entry.offset, entry.size), add(entry.signatures_offset, if (entry.signatures_offset > 0) 8 * header.n else 0) };
            inline for (ends) |end| if (end > self.bytes.len) return self.corrupt(diagnostic, "a column lies outside");
            if (entry.offset % alignment != 0 or entry.signatures_offset % alignment != 0) return self.corrupt(diagnostic, "a column is not aligned");
            const column = columns.get(self.name_of(entry)) orelse return self.corrupt(diagnostic, "it has a column that the index has not");
            if (@intFromEnum(column.type) != entry.type) return self.corrupt(diagnostic, "a column has another type in the index");
        }
    }

    fn entries(self: *const Postings) []const Entry {
        return std.mem.bytesAsSlice(Entry, @as([]align(8) const u8, self.bytes[@sizeOf(Header)..][0 .. self.header.column_count * @sizeOf(Entry)]));
    }

    fn name_of(self: *const Postings, entry: *const Entry) []const u8 {
        return self.bytes[entry.name_offset..][0..entry.name_size];
    }

    fn corrupt(self: *const Postings, diagnostic: *Diagnostic, why: []const u8) error{Corrupt} {
        return bad(diagnostic, self.name, why);
    }

    fn find(self: *const Postings, column: *const Column) ?*const Entry {
        for (self.entries()) |*entry| if (std.mem.eql(u8, self.name_of(entry), column.name)) return entry;
        return null;
    }

    /// A column's part, checked the first time; null where the file has none. Any thread.
    pub fn of(self: *Postings, index: usize, column: *const Column, diagnostic: *Diagnostic) PartError!?*const ColumnPostings {
        self.lock.lock();
        defer self.lock.unlock();
        if (self.checked.get(index)) |part| return part;
        const entry = self.find(column) orelse return null;
        if (entry.form == @intFromEnum(Form.none)) return null;
        const part = try self.alloc.create(ColumnPostings);
        errdefer self.alloc.destroy(part);
        part.* = try self.part_of(entry, column, diagnostic);
        try self.checked.put(self.alloc, index, part);
        return part;
    }

    /// Signatures of a list column, summed the first time; null where the file has none. Any thread.
    pub fn signatures(self: *Postings, index: usize, column: *const Column, diagnostic: *Diagnostic) PartError!?[*]const u64 {
        self.lock.lock();
        defer self.lock.unlock();
        const entry = self.find(column) orelse return null;
        if (entry.signatures_offset == 0) return null;
        const bytes = self.bytes[@intCast(entry.signatures_offset)..][0..@intCast(8 * self.header.n)];
        if (!self.signed.contains(index)) {
            if (base.checksum(bytes) != entry.signatures_checksum) return self.corrupt(diagnostic, "the checksum of a list column does not match");
            try self.signed.put(self.alloc, index, {});
        }
        return @ptrCast(@alignCast(bytes.ptr));
    }

    fn part_of(self: *const Postings, entry: *const Entry, column: *const Column, diagnostic: *Diagnostic) PartError!ColumnPostings {
        const bytes = self.bytes[@intCast(entry.offset)..][0..@intCast(entry.size)];
        if (base.checksum(bytes) != entry.checksum) return self.corrupt(diagnostic, "the checksum of a column does not match");
        const n = self.header.n;
        const form = std.enums.fromInt(Form, entry.form) orelse return self.corrupt(diagnostic, "a column has an unknown form");
        const limit = std.math.maxInt(u32);
        if (entry.entries >= limit or entry.distinct > entry.entries or entry.nulls > n) return self.corrupt(diagnostic, "a column contradicts itself");
        var part = ColumnPostings{ .n = @intCast(n), .form = form, .nulls = entry.nulls, .entries = @intCast(entry.entries), .distinct = @intCast(entry.distinct) };
        const words: []const u64 = @alignCast(std.mem.bytesAsSlice(u64, bytes[0 .. bytes.len / 8 * 8]));
        switch (form) {
            .none => unreachable,
            .order => {
                if (column.type.is_list() or entry.entries > n or bytes.len != part_size(.order, n, entry.entries, entry.distinct, 0)) return self.corrupt(diagnostic, "a column has another size");
                const fences = @min(fences_max, part.entries);
                part.keys = words[0..fences];
                part.words = words[fences..];
                part.width = width_of(n);
            },
            .values => {
                const least = part_size(.values, n, entry.entries, entry.distinct, 0) orelse 0;
                if (bytes.len < least or bytes.len % 8 != 0) return self.corrupt(diagnostic, "a column has another size");
                const d: usize = @intCast(entry.distinct);
                const half = (d + 2) / 2; // words of d + 1 starts
                part.keys = words[0..d];
                part.starts = std.mem.bytesAsSlice(u32, std.mem.sliceAsBytes(words[d..][0..half]))[0 .. d + 1];
                part.offsets = words[d + half ..][0 .. d + 1];
                part.words = words[d + half + d + 1 ..];
                if (!sound(&part)) return self.corrupt(diagnostic, "the values of a column contradict each other");
            },
        }
        return part;
    }
};

/// Starts and offsets rise as the shapes say, and bits that are taken whole name rows alone, so that no look-up checks again.
fn sound(part: *const ColumnPostings) bool {
    if (part.starts[0] != 0 or part.starts[part.distinct] != part.entries) return false;
    if (part.offsets[0] != 0 or part.offsets[part.distinct] != part.words.len) return false;
    for (0..part.distinct) |i| {
        if (part.starts[i + 1] <= part.starts[i] or part.starts[i + 1] - part.starts[i] > part.n) return false;
        if (i > 0 and part.keys[i] <= part.keys[i - 1]) return false;
        const shape = posting_room.Shape.of(part.n, part.starts[i + 1] - part.starts[i]);
        if (part.offsets[i + 1] < part.offsets[i] or part.offsets[i + 1] - part.offsets[i] != shape.words()) return false;
        if (part.offsets[i + 1] > part.words.len) return false;
        if (!shape.is_bits or part.n % 64 == 0) continue;
        const last = part.words[@intCast(part.offsets[i + 1] - 1)];
        if (last & ~low_bits(part.n % 64) != 0) return false;
    }
    return true;
}

fn add(a: u64, b: u64) u64 {
    return a +| b;
}

fn bad(diagnostic: *Diagnostic, name: []const u8, why: []const u8) error{Corrupt} {
    diagnostic.in_file(name, "is damaged: {s}", .{why});
    return error.Corrupt;
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

pub const Diagnostic = struct {
    message_buffer: [512]u8 = undefined,
    message_len: usize = 0,
    file_buffer: [256]u8 = undefined,
    file_len: usize = 0,

    /// The file that it is about, where there is one.
    pub fn file(self: *const Diagnostic) []const u8 {
        return self.file_buffer[0..self.file_len];
    }

    pub fn in_file(self: *Diagnostic, name: []const u8, comptime format: []const u8, args: anytype) void {
        self.file_len = @min(name.len, self.file_buffer.len);
        @memcpy(self.file_buffer[0..self.file_len], name[0..self.file_len]);
        self.say("{s} " ++ format, .{name} ++ args);
    }

    pub fn message(self: *const Diagnostic) []const u8 {
        return self.message_buffer[0..self.message_len];
    }

    pub fn say(self: *Diagnostic, comptime format: []const u8, args: anytype) void {
        var writer: std.Io.Writer = .fixed(&self.message_buffer);
        writer.print(format, args) catch {}; // a message cut short still says most of it
        self.message_len = writer.end;
    }
};
