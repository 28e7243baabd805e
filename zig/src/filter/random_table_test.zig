//! What tests of filters draw: a table with a column of every type, and programs over it.
const std = @import("std");
const testing = std.testing;
const base = @import("base");
const column_room = @import("column.zig");
const program = @import("program.zig");
const Column = column_room.Column;
const ColumnType = column_room.ColumnType;
const Columns = column_room.Columns;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Writer = @import("writer_test.zig").Writer;

const all_types = std.enums.values(ColumnType);

/// A column of every type, with and without nulls, at odd offsets; small domains, so that values meet operands.
pub const Table = struct {
    arena: std.heap.ArenaAllocator,
    columns: Columns,
    list: std.ArrayList(Column) = .empty,
    row_count: usize,

    pub fn init(self: *Table, row_count: usize, prng: *base.Prng) !void {
        self.* = .{ .arena = .init(testing.allocator), .columns = undefined, .row_count = row_count };
        errdefer self.arena.deinit();
        const arena = self.arena.allocator();
        self.columns = try Columns.init(arena, row_count);
        for (all_types) |t| for ([_]bool{ false, true }) |nullable| {
            const name = try std.fmt.allocPrint(arena, "{t}{s}", .{ t, if (nullable) "?" else "" });
            const column = try random_column(arena, name, t, nullable, row_count, prng);
            try self.list.append(arena, column);
            var diagnostic = Diagnostic{};
            try self.columns.add(column, &diagnostic);
        };
    }

    pub fn deinit(self: *Table) void {
        self.arena.deinit();
    }
};

/// Writes the postings of a table's columns and maps them.
pub fn with_postings(table: *Table, dir: *testing.TmpDir) !void {
    var buffer: [std.fs.max_path_bytes]u8 = undefined;
    const folder = try dir.dir.realpath(".", &buffer);
    const path = try std.fs.path.join(testing.allocator, &.{ folder, "columns.postings" });
    defer testing.allocator.free(path);
    try @import("postings_writer.zig").write(testing.allocator, path, &table.columns, 1);
    var diagnostic = Diagnostic{};
    try table.columns.load_postings(path, 1, &diagnostic);
}

fn random_value(comptime T: type, prng: *base.Prng) T {
    const extreme = prng.below(16) == 0;
    if (T == f32 or T == f64) {
        if (extreme) return ([_]T{ std.math.nan(T), std.math.inf(T), -std.math.inf(T), -0.0 })[@intCast(prng.below(4))];
        return @as(T, @floatFromInt(prng.below(20))) - 10;
    }
    if (extreme) return if (prng.boolean()) std.math.maxInt(T) else std.math.minInt(T);
    const small: i64 = @intCast(prng.below(20));
    return if (@typeInfo(T).int.signedness == .signed) @intCast(small - 10) else @intCast(small);
}

fn random_column(arena: std.mem.Allocator, name: []const u8, t: ColumnType, nullable: bool, row_count: usize, prng: *base.Prng) !Column {
    const skipped: usize = @intCast(prng.below(5));
    var column = Column{
        .name = name,
        .type = t,
        .row_count = row_count,
        .validity = null,
        .values = null,
        .values_offset = skipped,
        .values_count = 0,
    };
    if (nullable) {
        column.validity_offset = prng.below(11);
        const validity = try arena.alloc(u8, (row_count + @as(usize, @intCast(column.validity_offset)) + 7) / 8);
        for (validity) |*byte| byte.* = @truncate(prng.next() | prng.next());
        column.validity = validity.ptr;
    }
    switch (t) {
        .bool => {
            column.values_count = row_count + skipped;
            const bits = try arena.alloc(u8, (row_count + skipped + 7) / 8);
            for (bits) |*byte| byte.* = @truncate(prng.next());
            column.values = bits.ptr;
        },
        inline else => |scalar| {
            const T = program.ValueType(scalar);
            var element_count = row_count;
            if (comptime scalar.is_list()) {
                const offsets = try arena.alloc(i32, row_count + 1);
                var at: usize = 0;
                for (offsets) |*offset| {
                    offset.* = @intCast(at);
                    at += @intCast(prng.below(6));
                }
                element_count = @intCast(offsets[row_count]);
                column.offsets = offsets.ptr;
            }
            column.values_count = element_count + skipped;
            const bytes = try arena.alloc(u8, @sizeOf(T) * (element_count + skipped) + 1);
            const values: [*]align(1) T = @ptrCast(bytes.ptr + 1);
            for (0..element_count + skipped) |i| values[i] = random_value(T, prng);
            column.values = bytes.ptr + 1;
        },
    }
    return column;
}

fn operand_word(comptime T: type, value: T) u64 {
    return switch (T) {
        bool => @intFromBool(value),
        f32, f64 => @bitCast(@as(f64, value)),
        else => if (@typeInfo(T).int.signedness == .signed) @bitCast(@as(i64, value)) else value,
    };
}

/// Ascending, distinct, without NaN; codes are never negative.
fn random_operands(comptime t: ColumnType, prng: *base.Prng, buffer: []u64, count: usize) []u64 {
    const T = program.ValueType(t);
    var values: [64]T = undefined;
    for (values[0..count]) |*value| {
        value.* = if (T == bool) prng.boolean() else random_value(T, prng);
        if (T == f32 or T == f64) {
            if (value.* != value.*) value.* = 3.5;
        }
        if (t == .code32 or t == .list_code32) value.* = @intCast(@abs(@max(value.*, -std.math.maxInt(i32))));
    }
    const less = struct {
        fn less(_: void, a: T, b: T) bool {
            return if (T == bool) !a and b else a < b;
        }
    }.less;
    std.mem.sort(T, values[0..count], {}, less);
    var kept: usize = 0;
    for (values[0..count], 0..) |value, i| {
        if (i > 0 and !less({}, values[i - 1], value)) continue;
        buffer[kept] = operand_word(T, value);
        kept += 1;
    }
    return buffer[0..kept];
}

pub fn random_leaf(writer: *Writer, prng: *base.Prng) !void {
    const index: u16 = @intCast(prng.below(writer.columns.len));
    var buffer: [64]u64 = undefined;
    switch (writer.columns[index].type) {
        inline else => |t| {
            if (prng.below(8) == 0) return writer.leaf(.is_null, index, &.{});
            const count: usize = @intCast(switch (prng.below(3)) {
                0 => 1,
                1 => prng.below(4),
                else => prng.below(40),
            });
            const values = random_operands(t, prng, &buffer, count);
            if (t.is_list()) return writer.leaf(if (prng.boolean()) .contains_any else .contains_all, index, values);
            if (values.len > 0 and prng.boolean()) {
                const range = [2]u64{ values[0], values[values.len - 1] };
                return writer.leaf(.range, index, &range);
            }
            return writer.leaf(.in_set, index, values);
        },
    }
}

pub fn random_tree(writer: *Writer, prng: *base.Prng, depth: usize) !void {
    const kind = if (depth == 0) 9 else prng.below(10);
    switch (kind) {
        0, 1, 2, 3 => {
            const count: u32 = @intCast(1 + prng.below(4));
            for (0..count) |_| try random_tree(writer, prng, depth - 1);
            try writer.put(if (kind < 2) .all else .any, 0, count, &.{});
        },
        4, 5 => {
            try random_tree(writer, prng, depth - 1);
            try writer.put(.not, 0, 0, &.{});
        },
        6 => if (prng.below(4) == 0)
            try writer.put(if (prng.boolean()) .always else .never, 0, 0, &.{})
        else
            try random_leaf(writer, prng),
        else => try random_leaf(writer, prng),
    }
}
