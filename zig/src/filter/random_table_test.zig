//! Random inputs of tests of filters: a table with a column of every type, and programs over it.
const std = @import("std");
const base = @import("base");
const column_room = @import("column.zig");
const Diagnostic = @import("column.zig").Diagnostic;
const program = @import("program.zig");
const Column = @import("column.zig").Column;
const predicate = @import("predicate.zig");
const testing = std.testing;
const ColumnType = column_room.ColumnType;
const Columns = column_room.Columns;
const Opcode = program.Opcode;
const Filter = predicate.Filter;

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
            const T = column_room.ValueType(scalar);
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
    const T = column_room.ValueType(t);
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

// ---- programs as a caller writes them ----
//
// Writes programs in tests, as velo/filters/program.py does.

pub const Writer = struct {
    alloc: std.mem.Allocator,
    columns: []const Column,
    instructions: std.ArrayList(u8) = .empty,
    operands: std.ArrayList(u64) = .empty,
    count: u32 = 0,

    pub fn deinit(self: *Writer) void {
        self.instructions.deinit(self.alloc);
        self.operands.deinit(self.alloc);
    }

    pub fn put(self: *Writer, opcode: Opcode, column: u16, count: u32, values: []const u64) !void {
        var bytes: [16]u8 = @splat(0);
        bytes[0] = @intFromEnum(opcode);
        std.mem.writeInt(u16, bytes[2..4], column, .little);
        std.mem.writeInt(u32, bytes[4..8], count, .little);
        std.mem.writeInt(u64, bytes[8..16], self.operands.items.len, .little);
        try self.instructions.appendSlice(self.alloc, &bytes);
        try self.operands.appendSlice(self.alloc, values);
        self.count += 1;
    }

    pub fn leaf(self: *Writer, opcode: Opcode, column: u16, values: []const u64) !void {
        try self.put(opcode, column, @intCast(values.len), values);
    }

    pub fn finish(self: *Writer) ![]u8 {
        var out: std.ArrayList(u8) = .empty;
        var names: std.ArrayList(u8) = .empty;
        defer names.deinit(self.alloc);
        try out.appendNTimes(self.alloc, 0, program.header_size);
        for (self.columns) |column| {
            var entry: [8]u8 = undefined;
            std.mem.writeInt(u32, entry[0..4], @intCast(names.items.len), .little);
            std.mem.writeInt(u16, entry[4..6], @intCast(column.name.len), .little);
            std.mem.writeInt(u16, entry[6..8], @intCast(@intFromEnum(column.type)), .little);
            try out.appendSlice(self.alloc, &entry);
            try names.appendSlice(self.alloc, column.name);
        }
        try names.appendNTimes(self.alloc, 0, (8 - names.items.len % 8) % 8);
        try out.appendSlice(self.alloc, names.items);
        try out.appendSlice(self.alloc, self.instructions.items);
        for (self.operands.items) |word| try out.appendSlice(self.alloc, std.mem.asBytes(&std.mem.nativeToLittle(u64, word)));
        const header = out.items[0..program.header_size];
        @memcpy(header[0..4], program.magic);
        std.mem.writeInt(u16, header[4..6], program.version, .little);
        std.mem.writeInt(u16, header[6..8], @intCast(self.columns.len), .little);
        std.mem.writeInt(u32, header[8..12], self.count, .little);
        std.mem.writeInt(u32, header[12..16], @intCast(names.items.len), .little);
        std.mem.writeInt(u64, header[16..24], self.operands.items.len, .little);
        std.mem.writeInt(u64, header[24..32], out.items.len, .little);
        return out.toOwnedSlice(self.alloc);
    }
};

// ---- an interpreter ----
//
// The definition of what passes: an interpreter of programs that keeps the third truth value.

/// Truth with its third value, straight from the program's tree.
fn interpret(nodes: []const program.Node, at: u32, row: usize) ?bool {
    return switch (nodes[at]) {
        .constant => |value| value,
        .not => |child| if (interpret(nodes, child, row)) |value| !value else null,
        .all => |children| blk: {
            var truth: ?bool = true;
            for (children) |child| {
                const one = interpret(nodes, child, row);
                if (one == false) break :blk false;
                if (one == null) truth = null;
            }
            break :blk truth;
        },
        .any => |children| blk: {
            var truth: ?bool = false;
            for (children) |child| {
                const one = interpret(nodes, child, row);
                if (one == true) break :blk true;
                if (one == null) truth = null;
            }
            break :blk truth;
        },
        .leaf => |*leaf| interpret_leaf(leaf, row),
    };
}

fn interpret_leaf(leaf: *const program.Leaf, row: usize) ?bool {
    const column = leaf.column;
    if (leaf.opcode == .is_null) return !column.is_valid(row);
    if (!column.is_valid(row)) return null;
    switch (column.type) {
        inline else => |t| {
            const T = column_room.ValueType(t);
            if (comptime t.is_list()) {
                const offsets = column.offsets.?;
                const list = column.elements(T)[@intCast(offsets[row])..@intCast(offsets[row + 1])];
                for (0..leaf.operands.len()) |i| {
                    const wanted = leaf.operands.get(T, i).?;
                    const found = for (list) |element| {
                        if (element == wanted) break true;
                    } else false;
                    if (found != (leaf.opcode == .contains_all)) return found;
                }
                return leaf.opcode == .contains_all;
            }
            const value: if (T == bool) u64 else T = if (T == bool) @intFromBool(column.bool_at(row)) else column.elements(T)[row];
            const operand = struct {
                fn get(operands: program.Operands, i: usize) @TypeOf(value) {
                    return operands.get(@TypeOf(value), i).?;
                }
            }.get;
            if (leaf.opcode == .range) return value >= operand(leaf.operands, 0) and value <= operand(leaf.operands, 1);
            for (0..leaf.operands.len()) |i| if (value == operand(leaf.operands, i)) return true;
            return false;
        },
    }
}

/// Every form in which a filter is asked says what the interpreter says.
pub fn check_program(table: *Table, bytes: []const u8) !void {
    var arena = std.heap.ArenaAllocator.init(testing.allocator);
    defer arena.deinit();
    var diagnostic = Diagnostic{};
    const tree = try program.parse(arena.allocator(), &table.columns, bytes, &diagnostic);
    const filter = try Filter.compile(testing.allocator, &table.columns, bytes, &diagnostic);
    defer filter.deinit();

    const n = table.row_count;
    const vertices = try arena.allocator().alloc(u32, n);
    const many = try arena.allocator().alloc(bool, n);
    const bits = try arena.allocator().alloc(u8, (n + 7) / 8);
    for (vertices, 0..) |*vertex, i| vertex.* = @intCast((i * 7919) % n); // a permutation: 7919 is prime and above n
    for ([_]bool{ false, true }) |resolved| {
        if (resolved) {
            var it = try filter.matches();
            for (0..n) |row| if (filter.passes(@intCast(row))) try testing.expectEqual(@as(u32, @intCast(row)), it.next().?);
            try testing.expectEqual(null, it.next());
            _ = try filter.resolve();
            try testing.expect(filter.is_resolved() and filter.memory_bytes() >= n / 8);
        }
        const count = filter.count(bits);
        filter.passes_many(vertices, many);
        var expected_count: u64 = 0;
        for (0..n) |row| {
            const expected = interpret(tree.nodes, @intCast(tree.nodes.len - 1), row) == true;
            expected_count += @intFromBool(expected);
            try testing.expectEqual(expected, filter.passes(@intCast(row)));
            try testing.expectEqual(expected, (bits[row / 8] >> @intCast(row % 8)) & 1 == 1);
        }
        for (vertices, many) |vertex, one| try testing.expectEqual(filter.passes(vertex), one);
        try testing.expectEqual(expected_count, count);
        try testing.expectEqual(expected_count, filter.count(null));
        const expected_share = @as(f64, @floatFromInt(expected_count)) / @as(f64, @floatFromInt(n));
        if (filter.is_exact()) try testing.expectApproxEqAbs(expected_share, filter.estimate(), 1e-9);
        if (n <= 64) try testing.expect(filter.is_exact());
        if (expected_count > 0) try testing.expect(filter.estimate() > 0);
        if (n % 8 != 0) try testing.expectEqual(0, bits[bits.len - 1] >> @intCast(n % 8));
        if (n <= 64) try testing.expectApproxEqAbs(@as(f64, @floatFromInt(expected_count)) / @as(f64, @floatFromInt(n)), filter.estimate(), 1e-9);
    }
}
