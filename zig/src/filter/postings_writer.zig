//! Writes `columns.postings` from columns in memory: one column at a time, so that what it takes beside them is 12
//! bytes a value of the largest one and that column's part of the file.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const column_room = @import("column.zig");
const posting_room = @import("posting.zig");
const Column = column_room.Column;
const Columns = column_room.Columns;
const Form = column_room.Form;

const WriteError = error{OutOfMemory} || std.fs.File.OpenError || std.fs.File.WriteError || std.fs.File.PWriteError || std.fs.File.SyncError || std.fs.File.SetEndPosError;

/// A value is worth a place in the directory where this many rows have it, on average.
const rows_per_value_min = 16;
/// Lists have no order to fall back on; beyond this many tokens, or a quarter of all elements, they get no postings.
const tokens_max = 1 << 16;

/// Writes the file at `path` and syncs it; the caller gives it its name.
pub fn write(alloc: std.mem.Allocator, path: []const u8, columns: *const Columns, generation: u64) WriteError!void {
    const file = try std.fs.cwd().createFile(path, .{ .truncate = true });
    defer file.close();
    const count = columns.by_name.count();
    var names_size: usize = 0;
    for (columns.by_name.keys()) |name| names_size += name.len;
    const directory = try alloc.alignedAlloc(u8, .@"8", aligned(@sizeOf(column_room.Header) + count * @sizeOf(column_room.Entry) + names_size));
    defer alloc.free(directory);
    @memset(directory, 0);
    const entries: []column_room.Entry = std.mem.bytesAsSlice(column_room.Entry, directory[@sizeOf(column_room.Header)..][0 .. count * @sizeOf(column_room.Entry)]);
    var name_at = @sizeOf(column_room.Header) + count * @sizeOf(column_room.Entry);
    var end: u64 = directory.len;
    for (columns.by_name.values(), entries) |*column, *entry| {
        @memcpy(directory[name_at..][0..column.name.len], column.name);
        var part = try Part.of(alloc, @intCast(columns.row_count), column);
        defer part.deinit(alloc);
        entry.* = part.entry;
        entry.name_offset = @intCast(name_at);
        entry.name_size = @intCast(column.name.len);
        entry.type = @intCast(@intFromEnum(column.type));
        name_at += column.name.len;
        entry.offset = end;
        entry.size = 8 * part.words.len;
        const bytes = std.mem.sliceAsBytes(part.words);
        entry.checksum = base.checksum(bytes);
        try file.pwriteAll(bytes, end);
        end = aligned(end + bytes.len);
        if (column.type.is_list()) {
            const signatures = try alloc.alloc(u64, @intCast(columns.row_count));
            defer alloc.free(signatures);
            column_room.sign_lists(column, signatures);
            entry.signatures_offset = end;
            entry.signatures_checksum = base.checksum(std.mem.sliceAsBytes(signatures));
            try file.pwriteAll(std.mem.sliceAsBytes(signatures), end);
            end = aligned(end + 8 * signatures.len);
        }
    }
    try file.setEndPos(end);
    const header = column_room.Header{
        .magic = column_room.magic.*,
        .checksum = 0,
        .version = column_room.version,
        .column_count = @intCast(count),
        .n = columns.row_count,
        .directory_size = directory.len,
        .file_size = end,
        .generation = generation,
    };
    @memcpy(directory[0..@sizeOf(column_room.Header)], std.mem.asBytes(&header));
    std.mem.writeInt(u64, directory[8..16], base.checksum(directory[16..]), .little);
    try file.pwriteAll(directory, 0);
    try file.sync();
}

fn aligned(size: u64) usize {
    return @intCast(std.mem.alignForward(u64, size, column_room.alignment));
}

/// One column's part.
const Part = struct {
    entry: column_room.Entry,
    words: []u64,

    fn of(alloc: std.mem.Allocator, n: u32, column: *const Column) error{OutOfMemory}!Part {
        var sorted = try Sorted.of(alloc, n, column);
        defer sorted.deinit(alloc);
        const entries = sorted.rows.len;
        const distinct = sorted.distinct;
        const is_list = column.type.is_list();
        const form: Form = if (is_list)
            (if (distinct <= @max(tokens_max, entries / 4)) .values else .none)
        else if (distinct * rows_per_value_min <= entries or distinct <= 2)
            .values
        else
            .order;
        var self = Part{ .entry = std.mem.zeroes(column_room.Entry), .words = &.{} };
        self.entry.form = @intFromEnum(form);
        self.entry.nulls = sorted.nulls;
        self.entry.entries = entries;
        self.entry.distinct = distinct;
        switch (form) {
            .none => {},
            .values => self.words = try values_part(alloc, n, &sorted),
            .order => self.words = try order_part(alloc, n, &sorted),
        }
        return self;
    }

    fn deinit(self: *Part, alloc: std.mem.Allocator) void {
        alloc.free(self.words);
    }
};

fn values_part(alloc: std.mem.Allocator, n: u32, sorted: *const Sorted) error{OutOfMemory}![]u64 {
    const d = sorted.distinct;
    var blob: u64 = 0;
    var runs = sorted.runs();
    while (runs.next()) |run| blob += posting_room.Shape.of(n, @intCast(run.rows.len)).words();
    const half = (d + 2) / 2;
    const words = try alloc.alloc(u64, @intCast(d + half + d + 1 + blob));
    @memset(words, 0);
    const starts = std.mem.bytesAsSlice(u32, std.mem.sliceAsBytes(words[d..][0..half]));
    const offsets = words[d + half ..][0 .. d + 1];
    const postings_words = words[d + half + d + 1 ..];
    var at: usize = 0;
    var i: usize = 0;
    runs = sorted.runs();
    while (runs.next()) |run| : (i += 1) {
        words[i] = run.key;
        const size = posting_room.Shape.of(n, @intCast(run.rows.len)).words();
        posting_room.encode(n, run.rows, postings_words[at..][0..size]);
        at += size;
        starts[i + 1] = starts[i] + @as(u32, @intCast(run.rows.len));
        offsets[i + 1] = at;
    }
    assert(i == d and at == blob);
    return words;
}

fn order_part(alloc: std.mem.Allocator, n: u32, sorted: *const Sorted) error{OutOfMemory}![]u64 {
    const entries = sorted.rows.len;
    const fences = @min(column_room.fences_max, entries);
    const width = column_room.width_of(n);
    const words = try alloc.alloc(u64, fences + column_room.words_of_order(entries, width));
    @memset(words, 0);
    for (0..fences) |fence| words[fence] = sorted.key(fence * entries / fences);
    for (sorted.rows, 0..) |row, i| posting_room.put(words[fences..], i * width, width, row);
    return words;
}

/// A column's values by value, then by row, without null, NaN, and what a list holds twice.
const Sorted = struct {
    column: *const Column,
    rows: []u32,
    /// Lists: the element behind each row.
    elements: []u32,
    allocated: [3][]u32,
    distinct: usize,
    nulls: u64,

    fn of(alloc: std.mem.Allocator, n: u32, column: *const Column) error{OutOfMemory}!Sorted {
        const is_list = column.type.is_list();
        var nulls: u64 = 0;
        for (0..n) |row| nulls += @intFromBool(!column.is_valid(row));
        const most: usize = if (!is_list) n else if (n == 0) 0 else @intCast(column.offsets.?[n] - column.offsets.?[0]);
        const order = try alloc.alloc(u32, most);
        errdefer alloc.free(order);
        const spare = try alloc.alloc(u32, most);
        errdefer alloc.free(spare);
        // Of each element its row, by its place behind the first; scalars are their own.
        const owners = try alloc.alloc(u32, if (is_list) most else 0);
        errdefer alloc.free(owners);
        var self = Sorted{ .column = column, .rows = &.{}, .elements = &.{}, .allocated = .{ order, spare, owners }, .distinct = 0, .nulls = nulls };
        var count: usize = 0;
        const first: usize = if (is_list and n > 0) @intCast(column.offsets.?[0]) else 0;
        for (0..n) |row| {
            if (!column.is_valid(row)) continue;
            if (!is_list) {
                if (column_room.key_at(column, row) == null) continue;
                order[count] = @intCast(row);
                count += 1;
            } else for (@intCast(column.offsets.?[row])..@intCast(column.offsets.?[row + 1])) |element| {
                owners[element - first] = @intCast(row);
                if (element_key(column, element) == null) continue;
                order[count] = @intCast(element);
                count += 1;
            }
        }
        const by_key = radix(column, order[0..count], spare[0..count]);
        if (!is_list) {
            self.rows = by_key;
        } else {
            const other = if (by_key.ptr == order.ptr) spare else order;
            var kept: usize = 0;
            for (by_key) |element| {
                const row = owners[element - first];
                if (kept > 0 and other[kept - 1] == row and element_key(column, by_key[kept - 1]).? == element_key(column, element).?) continue;
                other[kept] = row;
                by_key[kept] = element;
                kept += 1;
            }
            self.rows = other[0..kept];
            self.elements = by_key[0..kept];
        }
        var all = self.runs();
        while (all.next()) |_| self.distinct += 1;
        return self;
    }

    fn deinit(self: *Sorted, alloc: std.mem.Allocator) void {
        for (self.allocated) |part| alloc.free(part);
    }

    fn key(self: *const Sorted, i: usize) u64 {
        return if (self.elements.len > 0) element_key(self.column, self.elements[i]).? else column_room.key_at(self.column, self.rows[i]).?;
    }

    fn runs(self: *const Sorted) Runs {
        return .{ .sorted = self };
    }
};

const Runs = struct {
    sorted: *const Sorted,
    at: usize = 0,

    fn next(self: *Runs) ?struct { key: u64, rows: []const u32 } {
        const rows = self.sorted.rows;
        if (self.at == rows.len) return null;
        const from = self.at;
        const key = self.sorted.key(from);
        while (self.at < rows.len and self.sorted.key(self.at) == key) self.at += 1;
        return .{ .key = key, .rows = rows[from..self.at] };
    }
};

/// Codes below 0 stand for null elements, which no filter selects.
fn element_key(column: *const Column, element: usize) ?u64 {
    switch (column.type) {
        .list_code32 => {
            const code = column.elements(i32)[element];
            return if (code < 0) null else column_room.key_of(i32, code);
        },
        .list_i64 => return column_room.key_of(i64, column.elements(i64)[element]),
        else => unreachable,
    }
}

/// Sorts `order` by key, keeping equal ones as they are; the result lies in one of the two.
fn radix(column: *const Column, order: []u32, spare: []u32) []u32 {
    return switch (column.type) {
        .bool => radix_of(.bool, column, order, spare),
        inline else => |t| radix_of(t, column, order, spare),
    };
}

fn radix_of(comptime t: column_room.ColumnType, column: *const Column, order: []u32, spare: []u32) []u32 {
    const key = struct {
        inline fn key(c: *const Column, i: u32) u64 {
            const T = column_room.ValueType(t);
            return column_room.key_of(T, if (t == .bool) c.bool_at(i) else c.elements(T)[i]).?;
        }
    }.key;
    var counts: [8][256]u32 = @splat(@splat(0));
    for (order) |i| {
        var rest = key(column, i);
        for (&counts) |*of_byte| {
            of_byte[@intCast(rest & 0xff)] += 1;
            rest >>= 8;
        }
    }
    var from = order;
    var to = spare;
    for (&counts, 0..) |*of_byte, byte| {
        const shift: u6 = @intCast(8 * byte);
        if (from.len == 0 or of_byte[@intCast(key(column, from[0]) >> shift & 0xff)] == from.len) continue; // all alike
        var at: u32 = 0;
        for (of_byte) |*one| {
            const here = one.*;
            one.* = at;
            at += here;
        }
        for (from) |i| {
            const place = &of_byte[@intCast(key(column, i) >> shift & 0xff)];
            to[place.*] = i;
            place.* += 1;
        }
        std.mem.swap([]u32, &from, &to);
    }
    return from;
}
